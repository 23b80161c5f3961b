#include "zero/steps.h"

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <string>
#include <utility>

#include "backend/errors.h"
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

// From the library that contains torch's operators, whatever else is loaded.
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

// How torch computes on this machine, for steps with torch's bits (kernels/step.h): torch's square root of contiguous
// float32 CPU tensors (MKL's vmsSqrt where libtorch_cpu has it, else at::sqrt), and whether the instruction set that
// torch has chosen fuses multiply-add. Found once; thread-safe.
const kernels::StepMath& torch_math() {
  static const kernels::StepMath kMath = find();
  return kMath;
}

void check_like(const Pieces& pieces, const Pieces& parameters, const char* what) {
  TORCH_CHECK(pieces.size() == parameters.size(), "optimizer step: ", pieces.size(), " tensors of ", what, " for ",
              parameters.size(), " parameters");
  for (size_t i = 0; i < pieces.size(); ++i) {
    const at::Tensor& piece = pieces[i];
    TORCH_CHECK(piece.device().is_cpu() && piece.scalar_type() == at::kFloat && piece.is_contiguous(),
                "optimizer step: ", what, " ", i, " must be contiguous float32 on the CPU, is ", piece.scalar_type(),
                " on ", piece.device());
    TORCH_CHECK(piece.numel() == parameters[i].numel(), "optimizer step: ", what, " ", i, " has ", piece.numel(),
                " elements, its parameter ", parameters[i].numel());
  }
}

float* place_in(const Pieces& pieces, size_t i, int64_t begin) {
  return i < pieces.size() ? pieces[i].mutable_data_ptr<float>() + begin : nullptr;
}

// The fastest math has IEEE roots in one pass; multiply-add as torch_math() has it.
kernels::StepMath math_of(bool fastest) {
  return fastest ? kernels::StepMath{nullptr, torch_math().fma} : torch_math();
}

class SgdSteps final : public PieceSteps {
 public:
  SgdSteps(Pieces parameters, Pieces buffers, std::vector<bool> first, const kernels::SgdSettings& settings,
           bool fastest)
      : PieceSteps(std::move(parameters)),
        buffers_(std::move(buffers)),
        first_(std::move(first)),
        settings_(settings),
        math_(math_of(fastest)) {
    if (settings.momentum != 0) check_like(buffers_, this->parameters(), "momentum buffers");
    TORCH_CHECK(first_.size() == this->parameters().size(), "optimizer step: ", first_.size(), " flags for ",
                this->parameters().size(), " parameters");
  }
  void step(size_t piece, int64_t begin, int64_t count, const float* gradients) const override {
    const kernels::StepArrays arrays{
        place_in(parameters(), piece, begin), gradients, {place_in(buffers_, piece, begin)}, count};
    kernels::sgd_step(settings_, arrays, first_[piece], math_);
  }

 private:
  const Pieces buffers_;
  const std::vector<bool> first_;
  const kernels::SgdSettings settings_;
  const kernels::StepMath math_;
};

class AdamSteps final : public PieceSteps {
 public:
  AdamSteps(Pieces parameters, Pieces means, Pieces squares, Pieces largest, std::vector<double> numbers,
            const kernels::AdamSettings& settings, bool fastest)
      : PieceSteps(std::move(parameters)),
        means_(std::move(means)),
        squares_(std::move(squares)),
        largest_(std::move(largest)),
        numbers_(std::move(numbers)),
        settings_(settings),
        math_(math_of(fastest)) {
    check_like(means_, this->parameters(), "means");
    check_like(squares_, this->parameters(), "squares");
    if (settings.amsgrad) check_like(largest_, this->parameters(), "largest squares");
    TORCH_CHECK(numbers_.size() == this->parameters().size(), "optimizer step: ", numbers_.size(), " step numbers for ",
                this->parameters().size(), " parameters");
  }
  void step(size_t piece, int64_t begin, int64_t count, const float* gradients) const override {
    const kernels::StepArrays arrays{
        place_in(parameters(), piece, begin),
        gradients,
        {place_in(means_, piece, begin), place_in(squares_, piece, begin), place_in(largest_, piece, begin)},
        count};
    kernels::adam_step(settings_, arrays, numbers_[piece], math_);
  }

 private:
  const Pieces means_, squares_, largest_;
  const std::vector<double> numbers_;
  const kernels::AdamSettings settings_;
  const kernels::StepMath math_;
};

}  // namespace

PieceSteps::PieceSteps(Pieces parameters) : parameters_(std::move(parameters)) {
  check_like(parameters_, parameters_, "parameters");
}

void PieceSteps::run(const std::vector<size_t>& numbers, const Pieces& gradients) const {
  Pieces stepped;
  for (const size_t number : numbers) {
    TORCH_CHECK(number < parameters_.size(), "optimizer step: piece ", number, " of ", parameters_.size());
    stepped.push_back(parameters_[number]);
  }
  check_like(gradients, stepped, "gradients");
  backend::guarded([&] {
    for (size_t i = 0; i < numbers.size(); ++i) {
      step(numbers[i], 0, gradients[i].numel(), gradients[i].const_data_ptr<float>());
    }
  });
}

Steps sgd_steps(Pieces parameters, Pieces buffers, std::vector<bool> first, const kernels::SgdSettings& settings,
                bool fastest) {
  return std::make_shared<SgdSteps>(std::move(parameters), std::move(buffers), std::move(first), settings, fastest);
}

Steps adam_steps(Pieces parameters, Pieces means, Pieces squares, Pieces largest, std::vector<double> numbers,
                 const kernels::AdamSettings& settings, bool fastest) {
  return std::make_shared<AdamSteps>(std::move(parameters), std::move(means), std::move(squares), std::move(largest),
                                     std::move(numbers), settings, fastest);
}

}  // namespace ringdp::zero
