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

// `by_rank`: the argument of odd_ranks(); ranks that abstain hold no bits.
std::string in_words(const std::vector<int>& odd, const std::vector<uint64_t>& by_rank) {
  const auto voters = by_rank.size() - std::count(by_rank.begin(), by_rank.end(), uint64_t{0});
  std::string text = odd.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < odd.size(); ++i) {
    text += (i == 0 ? "" : i + 1 < odd.size() ? ", " : " and ") + std::to_string(odd[i]);
  }
  if (odd.size() == voters) return text + " (no majority) hold different bits";
  return text + (odd.size() == 1 ? " holds" : " hold") + " other bits than most";
}

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
  own = {std::make_shared<backend::Capabilities::Digests>(), {}, 0, reals.numel()};
  own.given = kernels::unordered_checksum(reals.const_data_ptr(), reals.numel(), size);
  return own;
}

Mean::DigestsPtr Drift::take(size_t number, const Bucket& bucket, const at::Tensor& flat) {
  BucketChecksums& own = begin_bucket(number, flat);
  for (const at::Tensor& parameter : bucket.parameters) {
    own.sums.push_back(checksum_of(parameter));
    own.digests->own = kernels::combine(own.digests->own, own.sums.back());
  }
  return own.digests;
}

Mean::DigestsPtr Drift::abstain(size_t number, const Bucket& bucket, const at::Tensor& flat) {
  BucketChecksums& own = begin_bucket(number, flat);
  own.sums.resize(bucket.indices.size());
  return own.digests;
}

void Drift::check(size_t number, const Bucket& bucket, int64_t step, c10d::ProcessGroup& group) {
  BucketChecksums& own = buckets_.at(number);
  if (!own.digests || odd_ranks(own.digests->all).empty()) return;
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
  TORCH_CHECK(false, "DistributedDataParallel: at step ", step, " a rank's checksum of the parameters of bucket ",
              number, " changed on its way: its memory is damaged");
}

// The table has three rows per bucket, with one column per rank: the checksum of what was summed, the number of
// elements summed, and the checksum of what was given. A rank fills the first two rows for what it has summed of every
// rank, and its own column of the last row; the all_reduce adds up the tables.
void Drift::check_sums(const std::vector<Bucket>& buckets, int64_t step, c10d::ProcessGroup& group) {
  const size_t ranks = group.getSize(), rows = 3;
  std::vector<size_t> taken;
  for (size_t number = 0; number < buckets_.size(); ++number) {
    if (buckets_[number].digests) taken.push_back(number);
  }
  if (taken.empty()) return;
  at::Tensor table = at::zeros({static_cast<int64_t>(taken.size() * rows * ranks)}, at::kLong);
  int64_t* row = table.mutable_data_ptr<int64_t>();
  for (const size_t number : taken) {
    const collective::Contributions& summed = buckets_[number].digests->summed;
    for (size_t rank = 0; rank < summed.sums.size(); ++rank) {
      row[rank] = static_cast<int64_t>(summed.sums[rank]);
      row[ranks + rank] = summed.elements[rank];
    }
    row[2 * ranks + group.getRank()] = static_cast<int64_t>(buckets_[number].given);
    row += rows * ranks;
  }
  std::vector<at::Tensor> tables{table};
  group.allreduce(tables)->wait();
  row = table.mutable_data_ptr<int64_t>();
  for (const size_t number : taken) {
    const int64_t elements = buckets_[number].elements;
    for (size_t rank = 0; rank < ranks; ++rank) {
      // If several ranks compute the same sum, each rank's elements are counted that many times.
      const int64_t times = row[ranks + rank] / elements;
      const bool all = times > 0 && row[ranks + rank] == times * elements;
      const auto given = static_cast<uint64_t>(times) * static_cast<uint64_t>(row[2 * ranks + rank]);
      TORCH_CHECK(
          all && static_cast<uint64_t>(row[rank]) == given, "DistributedDataParallel: at step ", step,
          " the contribution of rank ", rank, " to ", gradients_of(names_, buckets[number].indices), " (bucket ",
          number, ") changed before it was summed, so all ranks have the same wrong mean: a memory error on rank ",
          rank, " or on the ranks it gave it to, or a link without a checksum. Do not step: restart from a checkpoint");
    }
    row += rows * ranks;
  }
}

}  // namespace ringdp::reducer
