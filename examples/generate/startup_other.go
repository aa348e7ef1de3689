//go:build !linux

package main

// forgetStartup does nothing here.
func forgetStartup() {}
