// The fused step, as one thread runs it: averages its packs over all ranks, applies Adam, stores parameters to all
// ranks.
//
// The roundings are those of kernels/step.h with fused multiply-add and IEEE square roots, so the bits are the CPU's
// (adam_step without torch's root) and depend neither on the number of blocks nor on where a shard is cut. Prim
// has, beside what device/kernel/run_steps.h asks for, blocks(), fma(a, b, c) and root(v), the last two rounded once.
// The last pack may hold fewer elements than lanes: state ends there, and parameters behind them stay as they are.
#pragma once
#include "device/kernel/element.h"
#include "device/kernel/look.h"

namespace ringdp::gpu {

template <class Prim>
__device__ float lerp(float from, float to, float weight) {
  const float distance = to - from;
  return weight < 0.5f ? Prim::fma(weight, distance, from) : Prim::fma(weight - 1, distance, to);
}

// The values of one element, read and written.
struct AdamElement {
  float parameter, mean, square, largest;
};

template <class Prim>
__device__ void step_element(const kernels::AdamScalars& s, float gradient, AdamElement& e) {
  if (s.maximize) gradient = -gradient;
  if (s.decays_gradient) gradient = Prim::fma(e.parameter, s.weight_decay, gradient);
  e.mean = lerp<Prim>(e.mean, gradient, s.mean_weight);
  e.square = Prim::fma(gradient * s.square_weight, gradient, e.square * s.beta2);
  e.largest = Max::apply(e.largest, e.square);
  const float denominator = Prim::root(s.amsgrad ? e.largest : e.square) / s.root_correction + s.eps;
  e.parameter = e.parameter * s.keep + e.mean * s.rate / denominator;
}

template <class Prim>
__device__ Values<float> values_at(const float* array, int64_t i) {
  const void* const start = array;
  return unpack<Prim, float>(Prim::load(static_cast<const Pack*>(start) + i));
}

template <class Prim>
__device__ void put_values(float* array, int64_t i, const Values<float>& values) {
  void* const start = array;
  Prim::store(static_cast<Pack*>(start) + i, pack_rounded<Prim, float>(values));
}

// `lanes`: how many of them are valid.
template <class Prim>
__device__ Values<float> state_at(const float* array, int64_t i, int lanes) {
  if (lanes == kLanes<float>) return values_at<Prim>(array, i);
  Values<float> values{};
  for (int k = 0; k < kLanes<float>; ++k) {
    if (k < lanes) values.of[k] = array[i * kLanes<float> + k];
  }
  return values;
}

template <class Prim>
__device__ void put_state(float* array, int64_t i, const Values<float>& values, int lanes) {
  if (lanes == kLanes<float>) return put_values<Prim>(array, i, values);
  for (int k = 0; k < kLanes<float>; ++k) {
    if (k < lanes) array[i * kLanes<float> + k] = values.of[k];
  }
}

template <class Prim, int kRanks>
__device__ Values<float> mean_at(const AdamWork& work, int64_t i) {
  Values<float> gradients[kRanks] = {};
  for (int r = 0; r < kRanks; ++r) gradients[r] = values_at<Prim>(work.gradients[r], i);
  for (int r = 1; r < kRanks; ++r) fold_into<Sum, float>(gradients[0], gradients[r]);
  finish<float>(gradients[0], work.divisor);
  return gradients[0];
}

template <class Prim, int kRanks>
__device__ void step_pack(const AdamWork& work, int64_t i, int lanes) {
  const bool amsgrad = work.scalars.amsgrad;
  Values<float> parameters = values_at<Prim>(work.parameters[work.rank], i);
  Values<float> means = state_at<Prim>(work.state[0], i, lanes), squares = state_at<Prim>(work.state[1], i, lanes);
  Values<float> largest = amsgrad ? state_at<Prim>(work.state[2], i, lanes) : Values<float>{};
  const Values<float> gradients = mean_at<Prim, kRanks>(work, i);
  for (int k = 0; k < kLanes<float>; ++k) {
    AdamElement e = {parameters.of[k], means.of[k], squares.of[k], largest.of[k]};
    step_element<Prim>(work.scalars, gradients.of[k], e);
    if (k < lanes) parameters.of[k] = e.parameter;
    means.of[k] = e.mean;
    squares.of[k] = e.square;
    largest.of[k] = e.largest;
  }
  put_state<Prim>(work.state[0], i, means, lanes);
  put_state<Prim>(work.state[1], i, squares, lanes);
  if (amsgrad) put_state<Prim>(work.state[2], i, largest, lanes);
  for (int k = 1; k <= kRanks; ++k) {
    float* const there = work.parameters[(work.rank + k) % kRanks];
    if (there != nullptr) put_values<Prim>(there, i, parameters);
  }
}

// kRanks: work.world.
template <class Prim, int kRanks>
__device__ void run_adam(const AdamWork& work) {
  const bool aborted = is_aborted<Prim>(*work.epoch, work.abort);
  const int64_t packs = aborted ? 0 : (work.count + kLanes<float> - 1) / kLanes<float>;
  const int64_t stride = int64_t{Prim::blocks()} * Prim::threads();
  for (int64_t i = int64_t{Prim::block()} * Prim::threads() + Prim::thread(); i < packs; i += stride) {
    const int64_t left = work.count - i * kLanes<float>;
    step_pack<Prim, kRanks>(work, i, left < kLanes<float> ? static_cast<int>(left) : kLanes<float>);
  }
  is_last<Prim>(*work.epoch, Prim::blocks());
}

}  // namespace ringdp::gpu
