// Whether all ranks still hold the same parameters, one part of them in each pass: what ringdp.watch compares.
//
// A word of 32 bits travels in the header of the pass's first bucket (PassDigest), so that no rank waits for another:
// which part's turn it is, and the part's checksum. Where ranks are not at the same turn, because one has begun later
// or has been without inputs, they see that in each other's words and go on from the same one. A bucket launched before
// any parameter is stepped compares the result of the previous step. Guarded by the reducer's lock.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace ringdp::reducer {

// The 64 bits in that header, unless check_drift uses them. 0 in a half: this rank says nothing.
struct PassDigest {
  uint32_t agreed = 0;  // of what set_agreed() was given
  uint32_t sample = 0;  // ParameterSample::word()

  uint64_t bits() const { return uint64_t{agreed} << 32 | sample; }
  static PassDigest of(uint64_t bits) { return {static_cast<uint32_t>(bits >> 32), static_cast<uint32_t>(bits)}; }
};

class ParameterSample {
 public:
  // `parameters`: one or more, contiguous, on the CPU, the same on all ranks.
  explicit ParameterSample(std::vector<at::Tensor> parameters);

  // An element of a parameter, by its index.
  struct Place {
    size_t parameter = 0;
    int64_t element = 0;
  };
  struct Part {
    Place first, last;  // inclusive
  };
  Part part(uint64_t number) const;

  // Only every `stride`-th turn is taken; 0: none. A power of two, which may differ between ranks.
  void set_stride(uint64_t stride) { stride_ = stride; }
  uint32_t word();  // of this rank in the pass that has begun
  uint32_t word_without_checksum() const { return static_cast<uint32_t>(turn_ % (kRounds * parts_) + 1) << kSumBits; }

  struct Found {
    int64_t pass = 0;
    uint64_t part = 0;
    std::vector<int> ranks;  // see odd_ranks() in drift.h
    bool has_majority = true;
  };
  // Ends the pass: `words` of all ranks, by rank, 0 of those that have no sample.
  void compare(const std::vector<uint32_t>& words, int64_t pass);
  int64_t compared() const { return compared_; }  // passes in which two ranks or more had a checksum
  int64_t spent_ns() const { return spent_ns_; }  // by word(), in all
  std::vector<Found> take_found();                // since the last call, the latest kKept
  bool has_found() const { return !found_.empty(); }

 private:
  // Odd, so that every part has its turn also where only every 2**n-th turn is taken.
  static constexpr uint64_t kMostParts = 31;
  static constexpr int64_t kLeastBytes = 1 << 16;  // of a part, unless there are fewer
  static constexpr int kSumBits = 20;
  static constexpr uint64_t kRounds = 128;  // over all parts, that a word tells apart; a multiple of usual strides
  static constexpr size_t kKept = 64;

  int64_t begin_of(uint64_t number) const;  // in bytes, as if parameters lay one after the other
  Place place_of(int64_t byte) const;
  // None if a parameter has been given other memory since, of another size or elsewhere.
  std::optional<uint64_t> checksum_of(uint64_t number) const;

  const std::vector<at::Tensor> parameters_;
  std::vector<int64_t> ends_;  // of each, in the same bytes
  uint64_t parts_ = 1;
  uint64_t stride_ = 1, turn_ = 0;
  int64_t compared_ = 0, spent_ns_ = 0;
  std::vector<Found> found_;
};

}  // namespace ringdp::reducer
