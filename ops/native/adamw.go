package native

// adamWFactors are the constants of one AdamW step; the assembly knows the order.
type adamWFactors struct {
	grad, beta1, rest1, beta2, rest2, keep, step, root, eps float32
}
