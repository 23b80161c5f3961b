// What became of the kernels on the current device: a check that none spills, where they run.
#include <algorithm>
#include <cstring>

#include "gpu/cuda/errors.h"
#include "gpu/cuda/kernel_table.h"
#include "gpu/ringdp_gpu.h"

namespace ringdp::gpu {
namespace {

struct Facts {
  int registers, spilled_bytes, blocks;
};

Facts facts_of(const void* kernel) {
  cudaFuncAttributes attributes;
  int blocks = 0;
  check("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, kernel),
        "rd_gpu_count says whether there is a device");
  check("cudaOccupancyMaxActiveBlocksPerMultiprocessor",
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads, 0));
  return {attributes.numRegs, static_cast<int>(attributes.localSizeBytes), blocks};
}

// Over all that have the name: the most of what is short, the fewest of what is wanted.
std::string line_of(const NamedKernels& kernels) {
  Facts worst = facts_of(kernels.kernels[0]);
  for (const void* const kernel : kernels.kernels) {
    const Facts facts = facts_of(kernel);
    worst = {std::max(worst.registers, facts.registers), std::max(worst.spilled_bytes, facts.spilled_bytes),
             std::min(worst.blocks, facts.blocks)};
  }
  return kernels.name + ": at most " + std::to_string(worst.registers) + " registers, " +
         std::to_string(worst.spilled_bytes) + " bytes spilled, at least " + std::to_string(worst.blocks) +
         " blocks a multiprocessor\n";
}

}  // namespace
}  // namespace ringdp::gpu

int rd_gpu_kernels(char* text, size_t bytes) {
  using namespace ringdp::gpu;
  return guarded([&] {
    refuse_null("rd_gpu_kernels", "text", text);
    std::string lines;
    for (const NamedKernels& kernels : all_kernels()) lines += line_of(kernels);
    if (lines.size() >= bytes) refuse("rd_gpu_kernels: give room for " + std::to_string(lines.size() + 1) + " bytes");
    std::memcpy(text, lines.c_str(), lines.size() + 1);
  });
}
