// x of a streaming product in 16 bits whose rows become E4M3 codes on their way, with a step for each row: what a quantisation by rows
// in front would give, by every block for itself. Rows are copied whole to shared memory, and loops stay loops: what runs once comes
// from memory instruction by instruction.
#pragma once
#include "grid.cuh"
#include "hopper.cuh"
#include "quantize.cuh"

template <class T> struct Rows {
  const T* x;
  long stride;
};
template <class X> struct IsRows { static constexpr bool value = false; };
template <class T> struct IsRows<Rows<T>> { static constexpr bool value = true; };

#ifdef SEAFAN_HOPPER
// Where the codes of a block go: rows of `stages` * 128 bytes, and of the first `primed` stages, which start again at 0 behind the
// last, also to their slots of the ring, whose x lies `slot` bytes apart.
struct Coded {
  unsigned char *rows, *ring;
  int stages, primed, slot;
};

// Codes of columns from `first` on of rows [m,k], zeros behind k, and the steps, by 256 threads with barrier 3, behind the launch in
// front. m is up to 8. space holds the rows; a thread first reads what it has copied itself.
// A call: behind its branches in line, the compiler serialises the wgmma instructions.
template <class T> __device__ __noinline__ void code_rows(Coded to, float* steps, Rows<T> x, int m, int k, int first, unsigned char* space) {
  __shared__ float largest_of[2][8];
  int each = 256;  // threads of a row
  while (each * m > 256) each /= 2;
  const int r = threadIdx.x / each, i = threadIdx.x % each, lane = threadIdx.x % 32, warp = threadIdx.x / 32, cols = r < m ? k : 0;
  T* row = (T*)space + r * k;
  grid_block();
#pragma unroll 1
  for (int c = i * 8; c < cols; c += each * 8) fetch8((Eight<T>*)(row + c), x.x + r * x.stride + c, 8, true);
  fetched();
  Largest<T> largest;
#pragma unroll 1
  for (int c = i * 8; c < cols; c += each * 8) {
    Eight<T> e;
    e.p[0] = load16(row + c);
    largest.meet(e);
  }
  float met = largest.value(), amax = met;
  if (met != met) {
    int nan = 0;
    amax = 0.f;
    for (int c = i * 8; c < cols; c += each * 8) meet_any(row, c, cols, amax, nan);
  }
  amax = warp_largest(amax), met = warp_largest(met);
  if (lane == 0) largest_of[0][warp] = amax, largest_of[1][warp] = met;
  asm volatile("bar.sync 3, 256;" ::: "memory");
  const int of_row = r * (each / 32) + min(lane, each / 32 - 1);
  amax = warp_largest(largest_of[0][of_row]), met = warp_largest(largest_of[1][of_row]);
  const float step = step_of<false>(amax, 0);
  if (r >= m) return;
  if (i == 0) steps[r] = step;
  const Coder<T, false> coder(step);
  const bool ordinary = coder.ordinary(met);
#pragma unroll 1
  for (int at = i * 8; at < to.stages * 128; at += each * 8) {
    const int c = first + at;
    uint2 q = make_uint2(0, 0);
    if (c < k && ordinary) {
      Eight<T> e;
      e.p[0] = load16(row + c);
      q = coder.encode(e);
    } else if (c < k) {
      q = encode_any<T, false>(row, c, k, step);
    }
    *(uint2*)(to.rows + r * to.stages * 128 + at) = q;
    for (int s = at / 128; s < to.primed; s += to.stages) *(uint2*)(to.ring + s * to.slot + r * 128 + (at / 16 % 8 ^ r % 8) * 16 + at % 16) = q;
  }
}
#endif
