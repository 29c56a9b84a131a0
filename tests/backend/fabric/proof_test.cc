// Proofs: HMAC-SHA256 by the vectors of RFC 4231. For the use of proofs by ranks see link_test.cc.
#include "backend/fabric/proof.h"

#include <gtest/gtest.h>

#include <string>

namespace shardwire::internal {
namespace {

TEST(Hmac, IsThatOfRfc4231) {
  std::string counted;
  for (char byte = 1; byte <= 25; ++byte) {
    counted += byte;
  }
  EXPECT_EQ(hexOf(hmac(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hexOf(hmac("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hexOf(hmac(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hexOf(hmac(counted, std::string(50, '\xcd'))),
            "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
}

TEST(Hmac, KeyOfAWholeBlockAndNoMessage) {
  EXPECT_EQ(hexOf(hmac(std::string(64, 'k'), "")), "83026a325aaee70e36cfe607536aa1054104ad1077c36134810d4ccded1ccd3b");
}

}  // namespace
}  // namespace shardwire::internal
