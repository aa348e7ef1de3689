// What the kernels of Kimi Delta Attention share: the activations, and how tables name sequences and states.
#pragma once
#include "element.cuh"

// In a slot: the request begins here, from a state of zeros.
constexpr int KDA_FRESH = 1 << 30;

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// log(1 + exp x)
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }

// The log-decay of x = z + dt_bias with rate A = exp(a_log): -A softplus(x), or bound sigmoid(A x) with a bound below 0.
__device__ __forceinline__ float log_decay(float x, float rate, float bound) { return bound < 0 ? bound * sigmoid(rate * x) : -rate * softplus(x); }

// A sequence in a table of four int32: first token, tokens (-1: not this launch's matter), number of its state (-1: its
// outputs are 0 and no state is touched; KDA_FRESH: from zeros), and the number of its first chunk.
struct Sequence {
  int first, tokens, slot, chunk;
  bool fresh;
  __device__ Sequence(const int* table, int i) {
    const int4 x = reinterpret_cast<const int4*>(table)[i];
    first = x.x, tokens = x.y, chunk = x.w;
    slot = x.z < 0 ? -1 : x.z & ~KDA_FRESH;
    fresh = x.z >= 0 && (x.z & KDA_FRESH);
  }
};
