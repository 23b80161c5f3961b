// Why a call fails: a number of cudaError_t (the driver interface has the same), and what was wrong.
#pragma once
#include <cstddef>
#include <stdexcept>
#include <string>

#include "cuda_runtime.h"

namespace stand_in {

class Refusal : public std::runtime_error {
 public:
  Refusal(cudaError_t code, const std::string& why) : std::runtime_error(why), code(code) {}
  const cudaError_t code;
};

// The devices there are, by the environment, read once:
//   STAND_IN_DEVICES=2          how many; the same number is the same device in every process of the machine
//   STAND_IN_MULTIPROCESSORS=4  blocks that a device holds at once, of all kernels of a process
//   STAND_IN_LACKS=ipc,fd,stream_waits,flush,barriers,peers,peer_writes,peer_copies   what they cannot do: legacy IPC,
//                               sharing by descriptor, 64-bit stream waits, a flush behind these, barriers between
//                               them, reaching the memory of another device, copying to that of another process, where
//                               what is written is lost; ending a copy to or from there
//   CUDA_DEVICE_MAX_CONNECTIONS=8   hardware queues of a device, which its streams share; unset: one each
//   STAND_IN_IS=mig             or mps: the devices are instances of one GPU; processes share them through MPS
// Every process has all of a device's multiprocessors: contexts of processes are time slices, here the host's.

constexpr size_t kDeviceBytes = size_t{1} << 30;
constexpr int kThreadsOfBlock = 2;  // host threads, however many a launch asks for

struct Machine {
  int devices = 2, multiprocessors = 4, connections = 0;
  bool ipc = true, fd = true, stream_waits = true, flush = true, barriers = true, peers = true, peer_writes = true,
       peer_copies = true;
  std::string is;  // "", mig, mps
};
const Machine& machine();  // throws Refusal for a value that is none

// Contexts: memory that a process takes of each device that one of its threads sets or uses. A thread without one uses
// the device that it has set, at first 0. Throws Refusal when there is no such device; of the calling thread.
constexpr int kNoContext = -1;
void set_device(int device);  // makes a context there
int current_device();         // makes none
void need_context();          // on the current device, unless the thread has one
int context();                // the device of the thread's, or kNoContext
void set_context(int device);
unsigned contexts();  // of the process, one bit for each device

// While a thread copies to host memory that is not pinned, which lasts until its stream comes to the copy, no other
// creates or destroys an event, allocates or frees memory: CUDA's driver has it so (13.0, on an H100).
class CopyToHost {
 public:
  CopyToHost();
  ~CopyToHost();
  CopyToHost(const CopyToHost&) = delete;
  CopyToHost& operator=(const CopyToHost&) = delete;
};
void wait_for_copies_to_host();

// Counts a call of the CUDA interface, and throws Refusal for the one of this thread that a test wants to fail, or
// std::bad_alloc; waits in the one that a test holds. `call`: its name; null is none.
void note(const char* call);
void count(const char* what);  // only

}  // namespace stand_in
