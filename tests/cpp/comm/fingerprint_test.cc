#include "comm/fingerprint.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ringdp::comm {
namespace {

OpDesc sample_call() {
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

TEST(Fingerprint, EqualCallsPass) { EXPECT_EQ(mismatch(sample_call(), sample_call()), ""); }

TEST(Fingerprint, EveryFieldIsComparedAndNamed) {
  const auto expect = [](const char* word, void (*change)(OpDesc&)) {
    OpDesc other = sample_call();
    change(other);
    const std::string text = mismatch(sample_call(), other);
    EXPECT_NE(text.find(word), std::string::npos) << word << ": " << text;
    EXPECT_NE(text.find("rank 0 called " + describe(sample_call())), std::string::npos) << text;
    EXPECT_NE(text.find("rank 5 called " + describe(other)), std::string::npos) << text;
  };
  expect("collective", [](OpDesc& d) { d.what = plan::Collective::kBarrier; });
  expect("dtype", [](OpDesc& d) { d.dtype = DType::kF16; });
  expect("reduce op", [](OpDesc& d) { d.op = ReduceOp::kSum; });
  expect("root", [](OpDesc& d) { d.root = 0; });
  expect("element count", [](OpDesc& d) { --d.count; });
  expect("element count", [](OpDesc& d) { d.counts = {1, 2, 3}; });
  expect("divisor", [](OpDesc& d) { d.divisor = 3; });
  expect("sequence number", [](OpDesc& d) { ++d.seq; });
  expect("group", [](OpDesc& d) { d.group = hash_name("tp"); });
  expect("group", [](OpDesc& d) { ++d.generation; });
}

plan::RootsPtr sample_roots(std::vector<std::vector<plan::LeafNode>> by_rank) {
  return std::make_shared<plan::Roots>(plan::Roots{4, std::move(by_rank)});
}

TEST(Fingerprint, WhoHasWhichRootsIsComparedAndSaid) {
  OpDesc mine = sample_call(), plain = sample_call();
  mine.roots = sample_roots({{{0, 2}}, {{2, 3}, {3, 4}}});
  std::vector<OpDesc> others(4, mine);
  others[0] = plain;
  others[1].roots = sample_roots({{{0, 2}, {2, 3}}, {{3, 4}}});
  others[2].roots = sample_roots({{{2, 3}, {3, 4}}, {{0, 2}}});
  others[3].roots = std::make_shared<plan::Roots>(plan::Roots{5, mine.roots->by_rank});
  for (const OpDesc& other : others) {
    const std::string text = mismatch(mine, other);
    EXPECT_NE(text.find("#17 (allotment of leaves to ranks): "), std::string::npos) << text;
    EXPECT_NE(text.find("rank 5 called " + describe(other)), std::string::npos) << text;
    EXPECT_NE(describe(mine), describe(other));
    EXPECT_NE(mismatch(other, mine), "");
  }
  OpDesc same = mine;
  same.roots = sample_roots({{{0, 2}}, {{2, 3}, {3, 4}}});
  EXPECT_EQ(mismatch(mine, same), "");
  EXPECT_NE(describe(mine).find(", 3 roots of leaves, allotment "), std::string::npos) << describe(mine);
}

// Only the first few are shown, all are compared.
TEST(Fingerprint, EveryOneOfManyPartsIsCompared) {
  OpDesc mine = sample_call();
  mine.counts.assign(40, 7);
  for (size_t i = 0; i < mine.counts.size(); ++i) {
    OpDesc theirs = mine;
    ++theirs.counts[i];
    EXPECT_NE(mismatch(mine, theirs).find("element count"), std::string::npos) << "part " << i;
  }
  EXPECT_EQ(mismatch(mine, mine), "");
  EXPECT_NE(describe(mine).find("[7, 7, 7, 7, 7, 7, ...]"), std::string::npos) << describe(mine);
}

// What a rank sends and receives in an all_to_all is checked by each pair, as no other rank knows it.
TEST(Fingerprint, PlacementsTravelInTheHeaderAndMayDiffer) {
  OpDesc mine;
  mine.what = plan::Collective::kAllReduce;
  const transport::Header header = encode(mine, {int64_t{5} << 40, 64});
  EXPECT_EQ(placement_in(header).inputs, int64_t{5} << 40);
  EXPECT_EQ(placement_in(header).output, 64);
  EXPECT_NO_THROW(check_same(mine, 0, header, 1));
  EXPECT_EQ(placement_in(encode(mine)).inputs, Placement::kElsewhere);
  mine.roots = sample_roots({{{0, 1}, {2, 3}}, {{1, 2}, {3, 4}}});
  const std::vector<int64_t> further = {0, 64, int64_t{5} << 34, 128, 192, int64_t{64} * (UINT32_MAX - 1)};
  const transport::Header of_roots = encode(mine, {64, 64, 0, further});
  EXPECT_EQ(placement_in(of_roots).further, further);
  EXPECT_NO_THROW(check_same(mine, 0, of_roots, 1));
}

TEST(Fingerprint, RemarksTravelInTheHeaderAndMayDiffer) {
  OpDesc mine;
  mine.what = plan::Collective::kAllReduce;
  const transport::Header header = encode(mine, {}, {0xfedcba9876543210u, int64_t{1} << 50});
  EXPECT_EQ(remarks_in(header).digest, 0xfedcba9876543210u);
  EXPECT_EQ(remarks_in(header).waited_ns, int64_t{1} << 50);
  EXPECT_NO_THROW(check_same(mine, 0, header, 1));
  EXPECT_EQ(remarks_in(encode(mine)).digest, 0u);
  EXPECT_EQ(remarks_in(encode(mine)).waited_ns, -1);
}

TEST(Fingerprint, SplitsAreNotCompared) {
  OpDesc mine = sample_call(), theirs = sample_call();
  mine.what = theirs.what = plan::Collective::kAllToAll;
  mine.sends = {1, 2}, theirs.recvs = {3, 4};
  EXPECT_EQ(mismatch(mine, theirs), "");
}

TEST(Fingerprint, WhereACollectiveRunsIsComparedAndSaid) {
  OpDesc host = sample_call(), devices = sample_call(), meeting = sample_call();
  devices.place = Place::kDevices;
  meeting.place = Place::kMeeting;
  const std::string text = mismatch(host, devices);
  EXPECT_NE(text.find("(host or devices)"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 5 called " + describe(devices)), std::string::npos) << text;
  EXPECT_EQ(describe(devices), describe(host) + " on devices");
  EXPECT_NE(mismatch(meeting, host).find("rank 0 called its first collective of tensors on a device"),
            std::string::npos);
  EXPECT_EQ(mismatch(meeting, meeting), "");
  OpDesc stepping = sample_call();
  stepping.place = Place::kStepping;
  EXPECT_EQ(describe(stepping), describe(devices) + " with a step");
  EXPECT_NE(mismatch(devices, stepping).find("(step)"), std::string::npos);
  EXPECT_EQ(mismatch(devices, stepping).find("buffer"), std::string::npos);
  OpDesc giving = stepping;
  giving.gives = true;
  EXPECT_NE(mismatch(stepping, giving).find("(who gets the parameters)"), std::string::npos);
  EXPECT_EQ(mismatch(giving, giving), "");
}

TEST(Fingerprint, WhereTensorsLieOnDevicesIsComparedAndSaid) {
  OpDesc window = sample_call(), buffer = sample_call(), further = sample_call(), sharing = sample_call();
  window.place = buffer.place = further.place = Place::kDevices;
  sharing.place = Place::kSharing;
  buffer.buffer = further.buffer = 2;
  further.buffer_at = 64;
  for (const OpDesc& other : {window, further}) {
    const std::string text = mismatch(buffer, other);
    EXPECT_NE(text.find("(place in shared memory)"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 5 called " + describe(other)), std::string::npos) << text;
  }
  EXPECT_EQ(describe(further), describe(window) + " in symmetric buffer 2 at 64");
  EXPECT_EQ(mismatch(buffer, buffer), "");
  EXPECT_NE(mismatch(sharing, window).find("rank 0 called what makes or gives back memory"), std::string::npos);
}

TEST(Fingerprint, BytesThatAreNoneAreRefused) {
  for (size_t at : {0, 4, 5, 6}) {  // magic, collective, dtype, reduce op
    transport::Header header = encode(sample_call());
    header.bytes[at] = std::byte{0xff};
    EXPECT_THROW(check_same(sample_call(), 0, header, 1), Error) << "byte " << at;
  }
}

TEST(Fingerprint, DescriptionsReadLikeCalls) {
  OpDesc d = sample_call();
  d.count = 4;
  EXPECT_EQ(describe(d), "reduce_scatter(AVG, bfloat16 x 4)");
  d.what = plan::Collective::kBroadcast;
  EXPECT_EQ(describe(d), "broadcast(bfloat16 x 4, root 3)");
  d.what = plan::Collective::kGather;
  EXPECT_EQ(describe(d), "gather(bfloat16 x 4, root 3)");
  d.what = plan::Collective::kAllToAll;
  EXPECT_EQ(describe(d), "all_to_all(bfloat16)");
  d.what = plan::Collective::kAllGather;
  d.counts = {3, 5};
  EXPECT_EQ(describe(d), "all_gather(bfloat16 x [3, 5])");
  d.what = plan::Collective::kBarrier;
  EXPECT_EQ(describe(d), "barrier()");
}

}  // namespace
}  // namespace ringdp::comm
