// Conversions of whole slices.

package dtype

// Narrow is a stored float type narrower than float32.
type Narrow interface{ BF16 | F16 | E4M3 | E5M2 }

// Of is the DType of T.
func Of[T Narrow]() DType {
	var z T
	switch any(z).(type) {
	case BF16:
		return BFloat16
	case F16:
		return Float16
	case E4M3:
		return Float8E4M3
	}
	return Float8E5M2
}

// ToFloat32 widens src into dst, exactly, and returns how many elements it
// converted: as copy does, the smaller of the two lengths.
func ToFloat32[T Narrow](dst []float32, src []T) int {
	n := min(len(dst), len(src))
	dst = dst[:n]
	switch src := any(src[:n]).(type) {
	case []BF16:
		for i, x := range src {
			dst[i] = x.Float32()
		}
	case []F16:
		for i, x := range src {
			dst[i] = x.Float32()
		}
	case []E4M3:
		for i, x := range src {
			dst[i] = e4m3Values[x]
		}
	case []E5M2:
		for i, x := range src {
			dst[i] = e5m2Values[x]
		}
	}
	return n
}

// FromFloat32 rounds src into dst as ToBF16, ToF16, ToE4M3 and ToE5M2 do and
// returns how many elements it converted: the smaller of the two lengths.
func FromFloat32[T Narrow](dst []T, src []float32) int {
	n := min(len(dst), len(src))
	src = src[:n]
	switch dst := any(dst[:n]).(type) {
	case []BF16:
		for i := range dst {
			dst[i] = ToBF16(src[i])
		}
	case []F16:
		for i := range dst {
			dst[i] = ToF16(src[i])
		}
	case []E4M3:
		for i := range dst {
			dst[i] = ToE4M3(src[i])
		}
	case []E5M2:
		for i := range dst {
			dst[i] = ToE5M2(src[i])
		}
	}
	return n
}
