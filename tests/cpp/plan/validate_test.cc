#include "plan/validate.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace ringdp::plan {
namespace {

Problem sound_gather() {
  Problem problem;
  problem.what = Collective::kAllGather;
  problem.world = 4;
  problem.rank = 3;
  problem.count = 100;
  return problem;
}

void expect_refused(const std::function<void(Problem&)>& spoil, const std::string& named) {
  Problem problem = sound_gather();
  spoil(problem);
  try {
    validate(problem);
    FAIL() << "accepted a bad " << named;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
  }
}

TEST(Validate, AcceptsSoundProblems) {
  Problem problem = sound_gather();
  EXPECT_NO_THROW(validate(problem));
  problem.counts = {0, 1, 2, 3};
  problem.hosts = {0, 1, 3};
  EXPECT_NO_THROW(validate(problem));
  problem.counts.clear();
  problem.what = Collective::kAllToAll;
  problem.sends = {1, 2, 3, 4};
  problem.recvs = {9, 0, 0, 4};
  EXPECT_NO_THROW(validate(problem));
}

TEST(Validate, RefusesNumbersOutOfRangeByName) {
  expect_refused([](Problem& p) { p.world = 0; }, "world=0");
  expect_refused([](Problem& p) { p.rank = 4; }, "rank=4");
  expect_refused([](Problem& p) { p.rank = -1; }, "rank=-1");
  expect_refused([](Problem& p) { p.root = 4; }, "root=4");
  expect_refused([](Problem& p) { p.count = -1; }, "count=-1");
  expect_refused([](Problem& p) { p.segment_bytes = 0; }, "segment_bytes=0");
  expect_refused([](Problem& p) { p.slot_bytes = 0; }, "slot_bytes=0");
  expect_refused([](Problem& p) { p.count = INT64_MAX / 8; }, "does not fit");
}

TEST(Validate, RefusesBadPartsByName) {
  using Field = std::vector<int64_t> Problem::*;
  const std::pair<Field, std::string> fields[] = {
      {&Problem::counts, "counts"}, {&Problem::sends, "sends"}, {&Problem::recvs, "recvs"}};
  for (const auto& [field, name] : fields) {
    expect_refused([f = field](Problem& p) { p.*f = {1, 2, 3}; }, name + " has 3 entries for world=4");
    expect_refused([f = field](Problem& p) { p.*f = {1, 2, -3, 4}; }, name + "[2]=-3");
    expect_refused([f = field](Problem& p) { p.*f = {INT64_MAX, 1, 0, 0}; }, "sum of " + name);
    expect_refused([f = field](Problem& p) { p.*f = {INT64_MAX / 4, INT64_MAX / 4, 0, 0}; }, "does not fit");
  }
}

TEST(Validate, RefusesCountsOfACollectiveWithoutParts) {
  for (int what = 0; what < kCollectiveCount; ++what) {
    Problem problem = sound_gather();
    problem.what = static_cast<Collective>(what);
    problem.counts = {1, 2, 3, 4};
    if (problem.has_parts()) {
      EXPECT_NO_THROW(validate(problem)) << name_of(problem.what);
    } else {
      expect_refused([&](Problem& p) { p = problem; }, "counts must be empty");
    }
  }
}

TEST(Validate, RefusesAnOwnPartOfTwoSizes) {
  const auto spoil = [](Problem& p) {
    p.what = Collective::kAllToAll;
    p.sends = {1, 2, 3, 4};
    p.recvs = {1, 2, 3, 5};
  };
  expect_refused(spoil, "sends[3]=4 must equal recvs[3]=5");
}

TEST(Validate, RefusesHostsThatAreNoPartitionByName) {
  expect_refused([](Problem& p) { p.hosts = {1, 2}; }, "hosts[0]=1");
  expect_refused([](Problem& p) { p.hosts = {0, 2, 2}; }, "hosts[2]=2");
  expect_refused([](Problem& p) { p.hosts = {0, 3, 1}; }, "hosts[2]=1");
  expect_refused([](Problem& p) { p.hosts = {0, 4}; }, "hosts[1]=4");
}

}  // namespace
}  // namespace ringdp::plan
