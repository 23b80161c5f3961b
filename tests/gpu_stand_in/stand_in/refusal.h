// Why a call fails: a number of cudaError_t (the driver interface has the same), and what was wrong.
#pragma once
#include <stdexcept>
#include <string>

#include "cuda_runtime.h"

namespace stand_in {

class Refusal : public std::runtime_error {
 public:
  Refusal(cudaError_t code, const std::string& why) : std::runtime_error(why), code(code) {}
  const cudaError_t code;
};

}  // namespace stand_in
