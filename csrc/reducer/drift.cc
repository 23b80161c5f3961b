#include "reducer/drift.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "backend/compat.h"
#include "kernels/checksum.h"
#include "reducer/error_messages.h"

namespace ringdp::reducer {
namespace {

uint64_t checksum_of(const at::Tensor& parameter) {
  const at::Tensor dense = parameter.is_non_overlapping_and_dense() ? parameter : parameter.contiguous();
  return kernels::checksum(dense.const_data_ptr(), dense.nbytes());
}

// The sums of every rank, by rank.
std::vector<std::vector<uint64_t>> gathered(const std::vector<uint64_t>& own, c10d::ProcessGroup& group) {
  const auto count = static_cast<int64_t>(own.size());
  at::Tensor mine = at::empty({count}, at::kLong);
  std::memcpy(mine.mutable_data_ptr(), own.data(), mine.nbytes());
  at::Tensor all = at::empty({count * group.getSize()}, at::kLong);
  backend::gather_parts(group, all, mine)->wait();
  std::vector<std::vector<uint64_t>> sums(group.getSize(), std::vector<uint64_t>(own.size()));
  const int64_t* at = all.const_data_ptr<int64_t>();
  for (auto& of_rank : sums) {
    for (uint64_t& sum : of_rank) sum = static_cast<uint64_t>(*at++);
  }
  return sums;
}

// "rank 1", "ranks 0, 1 and 3".
std::string in_words(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : i + 1 < ranks.size() ? ", " : " and ") + std::to_string(ranks[i]);
  }
  return text;
}

// `by_rank`: the argument of odd_ranks(); ranks that abstain hold no bits.
std::string in_words(const std::vector<int>& odd, const std::vector<uint64_t>& by_rank) {
  const auto voters = by_rank.size() - std::count(by_rank.begin(), by_rank.end(), uint64_t{0});
  if (odd.size() == voters) return in_words(odd) + " (no majority) hold different bits";
  return in_words(odd) + (odd.size() == 1 ? " holds" : " hold") + " other bits than most";
}

// A bucket's row in the table of check_sums(). A rank fills its own columns of the last two kinds, and in the others
// what it has summed and computed; an all_reduce adds up the tables.
struct Row {
  uint64_t* first;
  size_t ranks;

  static int64_t columns(int64_t ranks) { return 4 * ranks + 2; }
  uint64_t& summed(size_t rank) const { return first[rank]; }  // checksum of what was summed of this rank's gradients
  uint64_t& elements(size_t rank) const { return first[ranks + rank]; }   // how many elements that was
  uint64_t& given(size_t rank) const { return first[2 * ranks + rank]; }  // checksum of this rank's gradients
  uint64_t& held(size_t rank) const { return first[3 * ranks + rank]; }   // and of the mean as it has arrived there
  uint64_t& mean() const { return first[4 * ranks]; }                     // checksum of the mean as it was computed
  uint64_t& mean_elements() const { return first[4 * ranks + 1]; }        // how many elements that was
};

// Whether the checksum `sum` of `elements` elements is that of a tensor of `size` elements with the checksum `once`.
// If several ranks compute the same sum, the tensor is counted that many times.
bool agree(uint64_t sum, uint64_t elements, uint64_t size, uint64_t once) {
  const uint64_t times = elements / size;
  return times > 0 && elements == times * size && sum == times * once;
}

constexpr const char* kDoNotStep = "or a link without a checksum. Do not step: restart from a checkpoint";

}  // namespace

std::vector<int> odd_ranks(const std::vector<uint64_t>& by_rank) {
  std::map<uint64_t, size_t> votes;
  std::vector<int> all;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] == 0) continue;
    ++votes[by_rank[rank]];
    all.push_back(static_cast<int>(rank));
  }
  if (votes.size() < 2) return {};
  const auto most = std::max_element(votes.begin(), votes.end(), [](auto& a, auto& b) { return a.second < b.second; });
  if (2 * most->second > all.size()) {
    all.erase(std::remove_if(all.begin(), all.end(), [&](int rank) { return by_rank[rank] == most->first; }),
              all.end());
  }
  return all;
}

Drift::BucketChecksums& Drift::begin_bucket(size_t number, const at::Tensor& flat) {
  BucketChecksums& own = buckets_.at(number);
  const at::Tensor reals = as_reals(flat);  // as they are summed
  const auto size = static_cast<int64_t>(reals.itemsize());
  own = {std::make_shared<backend::Capabilities::Digests>(), {}, 0, 0, reals.numel(), 0};
  own.given = kernels::unordered_checksum(reals.const_data_ptr(), reals.numel(), size);
  return own;
}

Mean::DigestsPtr Drift::take(size_t number, const Bucket& bucket, const at::Tensor& flat, uint64_t agreed) {
  BucketChecksums& own = begin_bucket(number, flat);
  for (const at::Tensor& parameter : bucket.parameters) {
    own.sums.push_back(checksum_of(parameter));
    own.digests->own = kernels::combine(own.digests->own, own.sums.back());
  }
  own.agreed = agreed;
  if (agreed != 0) own.digests->own = kernels::combine(own.digests->own, agreed);
  return own.digests;
}

Mean::DigestsPtr Drift::abstain(size_t number, const Bucket& bucket, const at::Tensor& flat) {
  BucketChecksums& own = begin_bucket(number, flat);
  own.sums.resize(bucket.indices.size());
  return own.digests;
}

bool Drift::check(size_t number, const Bucket& bucket, const at::Tensor& mean, int64_t step,
                  c10d::ProcessGroup& group) {
  BucketChecksums& own = buckets_.at(number);
  if (!own.digests) return true;
  own.held = kernels::unordered_checksum(mean.const_data_ptr(), mean.numel(), static_cast<int64_t>(mean.itemsize()));
  if (odd_ranks(own.digests->all).empty()) return true;
  const auto sums = gathered(own.sums, group);
  for (size_t position = 0; position < bucket.indices.size(); ++position) {
    std::vector<uint64_t> by_rank;
    for (size_t rank = 0; rank < sums.size(); ++rank) {
      by_rank.push_back(own.digests->all[rank] == 0 ? 0 : sums[rank][position]);
    }
    const std::vector<int> odd = odd_ranks(by_rank);
    TORCH_CHECK(odd.empty(), "DistributedDataParallel: the ranks have drifted apart: at step ", step, " ",
                in_words(odd, by_rank), " of ", names_[bucket.indices[position]], " (bucket ", number,
                "), which must be equal before every backward pass. A memory error, or code that changes parameters on "
                "some ranks only, since the step before. Restart from a checkpoint; ringdp.check_replicas(model) "
                "compares everything");
  }
  TORCH_CHECK(own.agreed != 0, "DistributedDataParallel: at step ", step,
              " a rank's checksum of the parameters of bucket ", number, " changed on its way: its memory is damaged");
  return false;
}

void Drift::check_sums(const std::vector<Bucket>& buckets, int64_t step, c10d::ProcessGroup& group) {
  const size_t ranks = group.getSize();
  std::vector<size_t> taken;
  for (size_t number = 0; number < buckets_.size(); ++number) {
    if (buckets_[number].digests) taken.push_back(number);
  }
  if (taken.empty()) return;
  at::Tensor table = at::zeros({static_cast<int64_t>(taken.size()), Row::columns(ranks)}, at::kLong);
  auto* const cells = reinterpret_cast<uint64_t*>(table.mutable_data_ptr<int64_t>());
  const auto row_of = [&](size_t i) { return Row{cells + i * Row::columns(ranks), ranks}; };
  for (size_t i = 0; i < taken.size(); ++i) {
    const BucketChecksums& own = buckets_[taken[i]];
    const collective::Contributions& summed = own.digests->summed;
    const Row row = row_of(i);
    for (size_t rank = 0; rank < summed.sums.size(); ++rank) {
      row.summed(rank) = summed.sums[rank];
      row.elements(rank) = summed.elements[rank];
    }
    row.given(group.getRank()) = own.given;
    row.held(group.getRank()) = own.held;
    row.mean() = summed.result;
    row.mean_elements() = summed.result_elements;
  }
  std::vector<at::Tensor> tables{table};
  group.allreduce(tables)->wait();
  for (size_t i = 0; i < taken.size(); ++i) {
    const size_t number = taken[i];
    const uint64_t size = buckets_[number].elements;
    const auto whose = [&] {
      return gradients_of(names_, buckets[number].indices) + " (bucket " + std::to_string(number) + ")";
    };
    const Row row = row_of(i);
    for (size_t rank = 0; rank < ranks; ++rank) {
      TORCH_CHECK(agree(row.summed(rank), row.elements(rank), size, row.given(rank)),
                  "DistributedDataParallel: at step ", step, " the contribution of rank ", rank, " to ", whose(),
                  " changed before it was summed, so all ranks have the same wrong mean: a memory error on rank ", rank,
                  " or on the ranks it gave it to, ", kDoNotStep);
    }
    // Each rank holds the whole mean, or its part of it.
    std::vector<int> changed;
    uint64_t parts = 0;
    for (size_t rank = 0; rank < ranks; ++rank) {
      parts += row.held(rank);
      if (!agree(row.mean(), row.mean_elements(), size, row.held(rank))) changed.push_back(static_cast<int>(rank));
    }
    const bool sharded = buckets[number].sharded;
    TORCH_CHECK(sharded ? agree(row.mean(), row.mean_elements(), size, parts) : changed.empty(),
                "DistributedDataParallel: at step ", step, " the mean of ", whose(),
                " changed on its way from the rank that summed it to ",
                sharded ? "the rank that steps it" : in_words(changed), ": a memory error on one of them, ",
                kDoNotStep);
  }
}

}  // namespace ringdp::reducer
