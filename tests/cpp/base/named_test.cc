#include "base/named.h"

#include <gtest/gtest.h>

#include "base/dtype.h"

namespace ringdp {
namespace {

TEST(Named, EveryEnumeratorIsFoundByItsName) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(enumerator_named<DType>(name_of(dtype), kDTypeCount, "a dtype"), dtype);
  }
}

TEST(Named, ANameThatIsNoneIsRefusedWithTheKnownOnes) {
  try {
    enumerator_named<ReduceOp>("sum", 2, "a reduce operation");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_STREQ(error.what(), "'sum' is not a reduce operation: known are SUM, AVG");
  }
}

}  // namespace
}  // namespace ringdp
