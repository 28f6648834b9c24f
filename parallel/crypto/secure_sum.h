#pragma once
// Secure aggregation: a coordinator learns the sum of its members' vectors in Z_2^64 and nothing else about them. The protocol is that of Bonawitz et
// al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS 2017), figure 4, with the signatures and the consistency check
// against an active adversary. Member and coordinator are state machines without input or output, and all primitives are libsodium's; in a build
// without it their constructors and those of SumRound throw what require_sodium() throws.
//
//   phase      member u sends                                        coordinator sends
//   advertise  two X25519 public keys, signed                        the keys of set U1
//   share      Shamir shares of its self mask seed b_u and of its    the shares for each member of set U2
//              secret mask key, one pair encrypted for each member
//   mask       x_u + PRG(b_u) + sum over v > u of PRG(s_uv)          set U3 of those whose masked vectors have arrived
//              - sum over v < u of PRG(s_uv), v in U2
//   confirm    its signature of U1's keys, U2 and U3                 the signatures of set U4
//   reveal     shares of b_v for v in U3, and of the secret mask     -
//              key of v for v in U2 without U3
//
// The masks s_uv that two members share cancel in the sum. The coordinator removes the self masks of U3, and the masks that members of U3 share with
// members that left after they had sent shares. Members may leave in any phase: the round succeeds as long as `threshold` members are left, and
// otherwise ends with RoundAborted.
//
// Differences from the paper. Members also commit to b_u, so that the coordinator recognises a wrong self mask. Signatures of the consistency check
// cover U1's keys and U2 as well as U3, so that members agree on the whole history. Shares are decrypted when they arrive, so that a wrong frame is
// found before masks are used.
//
// What is promised, if t is the threshold, n the number of members, and the adversary controls c members:
// - Honest-but-curious coordinator with c < t: it learns the sum over the honest members of U3, at least t - c of them, and nothing else.
// - Coordinator that lies: the same, if 2t > n + c. It would have to convince two groups of t members of different sets U3 in order to collect shares
//   of both b_v and the mask key of one v. Two such groups have at least 2t - n members in common, of which one would be honest and have signed
//   twice. The default t = floor(2n/3) + 1 holds against any c < n/3; n = 2 needs t = 2. The coordinator still chooses who is in U3.
// - Identities, rounds and attempts: a message that another member, round, attempt or run has signed or encrypted is refused.
// What is not promised:
// - The correctness of the sum. A member may send any vector, and the coordinator may report any sum.
// - Availability. The coordinator may leave members out, and members that send wrong shares may end the round, as one wrong share of a secret is
//   replaced only if more members than the threshold are left; the error names those who may have sent it.
// - Privacy within the sum. A sum of few members may tell much about one of them, and with n = 2 each member knows the other's vector from the sum.
//   Sums of two rounds whose members differ by one tell about that one. Differential privacy addresses this.
// - Secrecy against who listens to the links of all members. It learns what the coordinator learns, so that links are to be encrypted.
// What the caller must do:
// - Mask one vector a round: the same masks on two vectors give their difference away.
// - After SecureSumMember::reveal(), refuse other attempts at the same round: two sums of the same vectors over different members would tell their
//   difference. Before that, an attempt with new keys is safe, also for the same vector.
#include "parallel/crypto/fixed_point.h"
#include "parallel/crypto/secure_sum_coordinator.h"
#include "parallel/crypto/secure_sum_member.h"
