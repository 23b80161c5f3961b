#include "comm/fingerprint.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ringdp::comm {
namespace {

OpDesc sample() {
  OpDesc d;
  d.what = plan::Collective::kReduceScatter;
  d.dtype = DType::kBF16;
  d.op = ReduceOp::kAvg;
  d.root = 3;
  d.count = int64_t{1} << 40;
  d.seq = 17;
  d.group = hash_name("dp");
  d.generation = 2;
  return d;
}

std::string mismatch(const OpDesc& mine, const OpDesc& theirs) {
  try {
    check_same(mine, 0, encode(theirs), 5);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
    EXPECT_EQ(error.culprit(), 5);
    return error.what();
  }
  return "";
}

TEST(Fingerprint, EqualCallsPass) { EXPECT_EQ(mismatch(sample(), sample()), ""); }

TEST(Fingerprint, EveryFieldIsComparedAndNamed) {
  const auto expect = [](const char* word, void (*change)(OpDesc&)) {
    OpDesc other = sample();
    change(other);
    const std::string text = mismatch(sample(), other);
    EXPECT_NE(text.find(word), std::string::npos) << word << ": " << text;
    EXPECT_NE(text.find("rank 0 called " + describe(sample())), std::string::npos) << text;
    EXPECT_NE(text.find("rank 5 called " + describe(other)), std::string::npos) << text;
  };
  expect("collective", [](OpDesc& d) { d.what = plan::Collective::kBarrier; });
  expect("dtype", [](OpDesc& d) { d.dtype = DType::kF16; });
  expect("reduce op", [](OpDesc& d) { d.op = ReduceOp::kSum; });
  expect("root", [](OpDesc& d) { d.root = 0; });
  expect("element count", [](OpDesc& d) { --d.count; });
  expect("sequence number", [](OpDesc& d) { ++d.seq; });
  expect("group", [](OpDesc& d) { d.group = hash_name("tp"); });
  expect("group", [](OpDesc& d) { ++d.generation; });
}

TEST(Fingerprint, BytesThatAreNoneAreRefused) {
  for (size_t at : {0, 4, 5, 6}) {  // magic, collective, dtype, reduce op
    transport::Note note = encode(sample());
    note.bytes[at] = std::byte{0xff};
    EXPECT_THROW(check_same(sample(), 0, note, 1), Error) << "byte " << at;
  }
}

TEST(Fingerprint, DescriptionsReadLikeCalls) {
  OpDesc d = sample();
  d.count = 4;
  EXPECT_EQ(describe(d), "reduce_scatter(AVG, bfloat16 x 4)");
  d.what = plan::Collective::kBroadcast;
  EXPECT_EQ(describe(d), "broadcast(bfloat16 x 4, root 3)");
  d.what = plan::Collective::kBarrier;
  EXPECT_EQ(describe(d), "barrier()");
}

}  // namespace
}  // namespace ringdp::comm
