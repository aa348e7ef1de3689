// The activations of gated linear units, in f32.
#pragma once
#include "epilogue.cuh"

struct Silu {
  static __device__ __forceinline__ float of(float x) { return silu(x); }
};
struct GeluTanh {
  static __device__ __forceinline__ float of(float x) {
    const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.f + tanhf(u));
  }
};
struct GeluErf {
  static __device__ __forceinline__ float of(float x) { return 0.5f * x * (1.f + erff(x * 0.7071067811865476f)); }
};
