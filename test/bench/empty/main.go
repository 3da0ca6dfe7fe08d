// Empty is a program that does nothing: what a process costs at least.
package main

func main() {}
