// How a failure inside libringdp_gpu.so becomes an error code and a message: the call, CUDA's error, and the way out.
//
// Inside the library failures are exceptions; every function of the C interface runs its body in guarded().
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <exception>
#include <stdexcept>
#include <string>

namespace ringdp::gpu {

constexpr int kRefused = -1;  // a bad argument; nothing was done

class Failure : public std::runtime_error {
 public:
  Failure(int code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  int code() const { return code_; }  // a cudaError_t, a CUresult, or kRefused

 private:
  const int code_;
};

// Throws Failure unless `result` is success. `way_out`: advice for the user.
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

// Functions of the CUDA driver, looked up by name at their first use, so that the library loads without a driver.
//
// Cache the result of driver_function in a static local only: without a driver it throws, and a static whose
// initialiser throws is initialised again by the next call.

// Throws Failure where the driver is absent or lacks the function.
void* driver_entry(const char* name);

template <class Function>
Function driver_function(const char* name) {
  return reinterpret_cast<Function>(driver_entry(name));
}

// Whether the driver has the function. Never throws.
bool driver_has(const char* name);

// Whether an attribute of the device is not 0. Throws Failure for one that the driver does not know.
bool has_attribute(CUdevice_attribute what, int device);

// Sets the calling thread's current device, and restores its previous context. A thread without one is left without:
// setting its device instead would make a context there, which takes memory of a device that the process may not use.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    int current = 0;  // asked for first, because it fails with the reason where there is no driver
    check("cudaGetDevice", cudaGetDevice(&current), "rd_gpu_count says whether there is a device");
    set_context_ = driver_function<decltype(&cuCtxSetCurrent)>("cuCtxSetCurrent");
    check("cuCtxGetCurrent", driver_function<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent")(&before_));
    check("cudaSetDevice(" + std::to_string(device) + ")", cudaSetDevice(device),
          "rd_gpu_count says how many there are");
  }
  ~OnDevice() { set_context_(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  decltype(&cuCtxSetCurrent) set_context_ = nullptr;
  CUcontext before_ = nullptr;
};

// Lets the calling thread allocate, map and free memory while another thread captures a graph: such calls would
// otherwise invalidate every capture in CUDA's global mode, which is torch's default.
class BesideCaptures {
 public:
  BesideCaptures() { exchange(); }
  ~BesideCaptures() { exchange(); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  void exchange() { cudaThreadExchangeStreamCaptureMode(&mode_); }

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // swapped with the thread's previous mode
};

// guarded(), with captures allowed on other threads.
template <class Text>
int guarded_beside_captures(Text text) noexcept {
  const BesideCaptures relaxed;
  return guarded(text);
}

}  // namespace ringdp::gpu
