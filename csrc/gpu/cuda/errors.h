// How a failure inside libringdp_gpu.so becomes a number and a sentence: the call, what CUDA says, and the way out.
//
// Inside the library failures are thrown; every function of the C interface runs its text in guarded().
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <exception>
#include <stdexcept>
#include <string>

namespace ringdp::gpu {

constexpr int kRefused = -1;  // a bad argument: nothing was done

class Failure : public std::runtime_error {
 public:
  Failure(int code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  int code() const { return code_; }  // a cudaError_t, a CUresult, or kRefused

 private:
  const int code_;
};

// Returns when `result` is success. `way_out`: what to do about it.
void check(const std::string& call, cudaError_t result, const char* way_out = "");
void check(const std::string& call, CUresult result, const char* way_out = "");

[[noreturn]] void refuse(const std::string& sentence);
void refuse_null(const char* function, const char* argument, const void* value);

// What rd_gpu_error() returns on this thread.
void set_sentence(const std::string& sentence) noexcept;

template <class Text>
int guarded(Text text) noexcept {
  try {
    text();
    return 0;
  } catch (const Failure& failure) {
    set_sentence(failure.what());
    return failure.code();
  } catch (const std::exception& error) {
    set_sentence(error.what());
    return kRefused;
  }
}

}  // namespace ringdp::gpu
