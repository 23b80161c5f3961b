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

// The declaration in MKL, and the mode in which ATen calls it (aten/src/ATen/cpu/vml.h).
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

// From the library that contains torch's operators, not from any other MKL in the process.
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

// The fastest step computes IEEE square roots in the same pass; it fuses multiply-add if torch does.
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

 protected:
  kernels::StepArrays arrays(size_t piece, int64_t begin, int64_t count, const float* gradients) const override {
    return {place_in(parameters(), piece, begin), gradients, {place_in(buffers_, piece, begin)}, count};
  }
  void step_arrays(size_t piece, const kernels::StepArrays& arrays) const override {
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
  AdamSteps(Pieces parameters, Pieces exp_avg, Pieces exp_avg_sq, Pieces max_exp_avg_sq,
            std::vector<double> step_numbers, const kernels::AdamSettings& settings, bool fastest)
      : PieceSteps(std::move(parameters)),
        exp_avg_(std::move(exp_avg)),
        exp_avg_sq_(std::move(exp_avg_sq)),
        max_exp_avg_sq_(std::move(max_exp_avg_sq)),
        step_numbers_(std::move(step_numbers)),
        settings_(settings),
        math_(math_of(fastest)) {
    check_like(exp_avg_, this->parameters(), "exp_avg");
    check_like(exp_avg_sq_, this->parameters(), "exp_avg_sq");
    if (settings.amsgrad) check_like(max_exp_avg_sq_, this->parameters(), "max_exp_avg_sq");
    TORCH_CHECK(step_numbers_.size() == this->parameters().size(), "optimizer step: ", step_numbers_.size(),
                " step numbers for ", this->parameters().size(), " parameters");
  }

 protected:
  kernels::StepArrays arrays(size_t piece, int64_t begin, int64_t count, const float* gradients) const override {
    return {place_in(parameters(), piece, begin),
            gradients,
            {place_in(exp_avg_, piece, begin), place_in(exp_avg_sq_, piece, begin),
             place_in(max_exp_avg_sq_, piece, begin)},
            count};
  }
  void step_arrays(size_t piece, const kernels::StepArrays& arrays) const override {
    kernels::adam_step(settings_, arrays, step_numbers_[piece], math_);
  }

 private:
  const Pieces exp_avg_, exp_avg_sq_, max_exp_avg_sq_;
  const std::vector<double> step_numbers_;
  const kernels::AdamSettings settings_;
  const kernels::StepMath math_;
};

}  // namespace

PieceSteps::PieceSteps(Pieces parameters) : parameters_(std::move(parameters)) {
  check_like(parameters_, parameters_, "parameters");
}

void PieceSteps::run(const std::vector<size_t>& pieces, const Pieces& gradients, const StepJournal* journal,
                     const std::vector<int64_t>& numbers) const {
  Pieces stepped;
  for (const size_t piece : pieces) {
    TORCH_CHECK(piece < parameters_.size(), "optimizer step: piece ", piece, " of ", parameters_.size());
    stepped.push_back(parameters_[piece]);
  }
  check_like(gradients, stepped, "gradients");
  TORCH_CHECK(journal == nullptr || numbers.size() == pieces.size(), "optimizer step: ", numbers.size(),
              " numbers in the journal for ", pieces.size(), " pieces");
  for (const int64_t number : numbers) {
    TORCH_CHECK(journal != nullptr && number >= 0 && number < journal->pieces(), "optimizer step: no piece ", number,
                " in the journal");
  }
  backend::guarded([&] {
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (journal != nullptr) {
        run_noted(pieces[i], gradients[i], *journal, numbers[i]);
      } else {
        step(pieces[i], 0, gradients[i].numel(), gradients[i].const_data_ptr<float>());
      }
    }
  });
}

void PieceSteps::run_noted(size_t piece, const at::Tensor& gradient, const StepJournal& journal, int64_t number) const {
  for (int64_t begin = 0; begin < gradient.numel(); begin += kJournalBlock) {
    const int64_t count = std::min(kJournalBlock, gradient.numel() - begin);
    const kernels::StepArrays block = arrays(piece, begin, count, gradient.const_data_ptr<float>() + begin);
    journal.before(number, begin, block);
    step_arrays(piece, block);
    journal.after(number, begin + count);
  }
}

Steps sgd_steps(Pieces parameters, Pieces buffers, std::vector<bool> first, const kernels::SgdSettings& settings,
                bool fastest) {
  return std::make_shared<SgdSteps>(std::move(parameters), std::move(buffers), std::move(first), settings, fastest);
}

Steps adam_steps(Pieces parameters, Pieces exp_avg, Pieces exp_avg_sq, Pieces max_exp_avg_sq,
                 std::vector<double> step_numbers, const kernels::AdamSettings& settings, bool fastest) {
  return std::make_shared<AdamSteps>(std::move(parameters), std::move(exp_avg), std::move(exp_avg_sq),
                                     std::move(max_exp_avg_sq), std::move(step_numbers), settings, fastest);
}

}  // namespace ringdp::zero
