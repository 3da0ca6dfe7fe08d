// Empty does nothing. It shows the minimum cost of a process.
package main

func main() {}
