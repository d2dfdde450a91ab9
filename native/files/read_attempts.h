// How often a read is made that fails.
#pragma once

namespace diskgnn {

// A read that fails is made again: a link that recovers, or a sector that the drive reads at its next attempt, must not
// end a job of hours. What fails as often as this has failed.
constexpr unsigned kReadAttempts = 4;

// True for errors of a disk that does not give its data. Direct reads get the block layer's own errors, not EIO alone:
// ENODATA of a sector that cannot be read, EILSEQ of one whose protection does not fit, others of a target, a link or a
// file server.
bool worth_another_attempt(int error);

}  // namespace diskgnn
