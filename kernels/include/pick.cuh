// Registers by an index that only runs: in a loop that is not unrolled, a tree of branches finds the ones of its turn.
#pragma once

template <int N> struct Constant {
  static constexpr int value = N;
};
// Calls f with i, FROM <= i < TO, as a constant.
template <int FROM, int TO, class F> __device__ __forceinline__ void pick(int i, F f) {
  if constexpr (TO - FROM == 1) f(Constant<FROM>());
  else if (i < (FROM + TO) / 2) pick<FROM, (FROM + TO) / 2>(i, f);
  else pick<(FROM + TO) / 2, TO>(i, f);
}
