#include "device/runtime/signature.h"

#include <string>

#include "base/error.h"
#include "plan/plan.h"

namespace ringdp::gpu {
namespace {

static_assert(sizeof(Signature) == plan::kPackBytes);

char* place_of(char* memory, const Signature& signature) { return memory + signature.writer * sizeof(Signature); }

void expect(const Functions& functions, int device, char* memory, const Signature& signature, const char* what) {
  Signature read;
  require(functions, functions.copy_now(device, &read, place_of(memory, signature), sizeof read));
  if (read.token == signature.token && read.owner == signature.owner && read.writer == signature.writer) return;
  throw Error(ErrorKind::kInternal, std::string("it is mapped, and ") + what +
                                        ": accesses go astray between these devices, as behind an IOMMU; "
                                        "`nvidia-smi topo -p2p rw` shows what they can");
}

}  // namespace

void sign(const Functions& functions, int device, char* memory, const Signature& signature) {
  require(functions, functions.copy_now(device, place_of(memory, signature), &signature, sizeof signature));
}

void check_signatures(const Functions& functions, int device, char* memory, const Signature& owners,
                      const Signature& own) {
  expect(functions, device, memory, owners, "what its rank wrote is not read");
  sign(functions, device, memory, own);
  expect(functions, device, memory, own, "what is written is not read back");
}

}  // namespace ringdp::gpu
