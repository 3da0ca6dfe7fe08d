// Package chart checks the Helm chart with Helm's own code.
package chart
