#include "reducer/divisor.h"

#include <ATen/ATen.h>

#include <cmath>

namespace ringdp::reducer {
namespace {

// The Future's value, because works of groups written in Python have no result().
double sum_of(c10d::Work& work) {
  work.wait();
  const auto future = work.getFuture();
  future->wait();  // a Future may be completed after its Work
  const c10::IValue value = future->value();
  const at::Tensor sum = value.isTensor() ? value.toTensor() : value.toTensorVector().at(0);
  return sum.item<double>();
}

}  // namespace

double Divisor::get() {
  if (value_ != 0) return value_;
  const double value = work_ ? sum_of(*work_) : ranks_;
  TORCH_CHECK(std::isfinite(value) && value > 0, "DistributedDataParallel: the weights of all ranks sum up to ", value,
              ", and gradients cannot be divided by that: at least one rank must have a sample in every step");
  return value_ = value;
}

void Divisor::reset() {
  work_ = nullptr;
  value_ = 0;
}

}  // namespace ringdp::reducer
