#include "zero/torch_math.h"

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <string>

#include "kernels/fold.h"

namespace ringdp::zero {
namespace {

// As MKL declares it, and the mode in which ATen calls it (aten/src/ATen/cpu/vml.h).
using VmsSqrt = void (*)(int count, const float* values, float* roots, long long mode);
constexpr long long kHighAccuracy = 0x2, kErrorsIgnored = 0x100, kSubnormalsKept = 0x140000;
constexpr int64_t kMost = INT_MAX;

VmsSqrt vms_sqrt = nullptr;  // written once, before root_by_mkl is handed out

void root_by_mkl(const float* values, float* roots, int64_t count) {
  for (int64_t begin = 0; begin < count; begin += kMost) {
    const auto part = static_cast<int>(std::min(kMost, count - begin));
    vms_sqrt(part, values + begin, roots + begin, kSubnormalsKept | kErrorsIgnored | kHighAccuracy);
  }
}

void root_by_aten(const float* values, float* roots, int64_t count) {
  const at::Tensor from = at::from_blob(const_cast<float*>(values), {count}, at::kFloat);
  at::Tensor to = at::from_blob(roots, {count}, at::kFloat);
  at::sqrt_out(to, from);
}

// Out of the library that torch's operators are in, whatever is loaded beside it.
VmsSqrt find_vms_sqrt() {
  Dl_info library{};
  if (dladdr(reinterpret_cast<const void*>(&at::get_cpu_capability), &library) == 0) return nullptr;
  void* const handle = dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  auto* const found = reinterpret_cast<VmsSqrt>(dlsym(handle, "vmsSqrt"));
  dlclose(handle);  // torch holds it
  return found;
}

bool torch_fuses() {
  const std::string capability = at::get_cpu_capability();
  return capability == "AVX2" || capability == "AVX512" || std::string(kernels::instruction_set()) == "neon";
}

kernels::StepMath find() {
  vms_sqrt = find_vms_sqrt();
  return {vms_sqrt ? root_by_mkl : root_by_aten, torch_fuses()};
}

}  // namespace

const kernels::StepMath& torch_math() {
  static const kernels::StepMath kMath = find();
  return kMath;
}

kernels::StepMath fastest_math() { return {nullptr, torch_math().fma}; }

}  // namespace ringdp::zero
