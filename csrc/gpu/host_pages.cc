#include "gpu/host_pages.h"

#include <cstring>
#include <new>

#include "base/bytes.h"

namespace ringdp::gpu {
namespace {

constexpr int64_t kPageBytes = 4096;  // devices map whole ones

}  // namespace

int64_t OwnPage::bytes() { return align_up(sizeof(HostPage), kPageBytes); }

OwnPage::OwnPage(std::shared_ptr<transport::Heap> heap, const std::byte* base)
    : heap_(std::move(heap)), block_(heap_->take(bytes() + kPageBytes)) {
  offset_ = align_up(block_ - base, kPageBytes);
  std::byte* const start = block_ + (offset_ - (block_ - base));
  std::memset(start, 0, static_cast<size_t>(bytes()));  // a block may have been used before
  page_ = new (start) HostPage;
  static_assert(std::is_trivially_default_constructible_v<HostPage>, "the zeros stay");
}

OwnPage::~OwnPage() { heap_->release(block_); }

MappedPages::MappedPages(const Functions& functions, const std::vector<HostPage*>& pages) : functions_(functions) {
  for (HostPage* const page : pages) {
    void* on_device = nullptr;
    if (const int result = functions.host_map(page, static_cast<size_t>(OwnPage::bytes()), &on_device); result != 0) {
      const std::string sentence = functions.error();
      unmap();
      throw Error(ErrorKind::kInternal, "CUDA: " + sentence);
    }
    mapped_.push_back(page);
    on_device_.push_back(static_cast<HostPage*>(on_device));
  }
}

MappedPages::~MappedPages() { unmap(); }

void MappedPages::unmap() {
  for (HostPage* const page : mapped_) functions_.host_unmap(page);
}

}  // namespace ringdp::gpu
