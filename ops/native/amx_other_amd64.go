//go:build !linux && !purego

package native

// requestTiles is false where it is not known how to ask.
func requestTiles() bool { return false }
