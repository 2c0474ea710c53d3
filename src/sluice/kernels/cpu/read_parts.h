// Reads keys and values of stored pages from a file, and checks them while they are in the processor's cache.
#pragma once

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "crc32c.h"

namespace stored {

// Bytes that are read before they are checked: they have to stay in a core's cache.
constexpr int64_t PIECE = 256 << 10;
constexpr int MOST_BUFFERS = 512;    // Linux takes 1024 in one call

// Fill buffers from an offset of a file. `descriptor` is read anew before each call of the system: a closed file's
// number may be another file's by then.
inline ReadOutcome fill(const int32_t* descriptor, iovec* buffers, int count, int64_t offset, int32_t& error) {
    while (count) {
        const int32_t file = __atomic_load_n(descriptor, __ATOMIC_ACQUIRE);
        const ssize_t done = file < 0 ? (errno = EBADF, -1) : preadv(file, buffers, count, offset);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return error = errno, READ_FAILED;
        if (done == 0) return FILE_ENDED;
        offset += done;
        size_t left = done;
        for (; count && left >= buffers->iov_len; buffers++, count--) left -= buffers->iov_len;
        if (count && left) {
            buffers->iov_base = static_cast<uint8_t*>(buffers->iov_base) + left;
            buffers->iov_len -= left;
        }
    }
    return ALL_READ;
}

// Compare a part that was read with its checksum.
inline ReadOutcome check(ReadPartsCall& call, int32_t part) {
    const int64_t at = part * call.part_bytes;
    call.found = crc32c::of(crc32c::of(0, call.k + at, call.part_bytes), call.v + at, call.part_bytes);
    return call.found == call.expected[part] ? ALL_READ : DIFFERENT;
}

// Read and check parts that follow each other in the file, all of them within a piece.
inline ReadOutcome read_neighbours(ReadPartsCall& call, int32_t first, int32_t end) {
    iovec buffers[MOST_BUFFERS];
    int count = 0;
    for (int32_t part = first; part < end; part++) {
        for (uint8_t* target : {call.k, call.v}) {
            buffers[count++] = {target + part * call.part_bytes, static_cast<size_t>(call.part_bytes)};
        }
    }
    call.part = first;
    ReadOutcome outcome = fill(call.descriptor, buffers, count, call.offsets[first], call.error);
    for (int32_t part = first; part < end && outcome == ALL_READ; part++) {
        call.part = part;
        outcome = check(call, part);
    }
    return outcome;
}

// Read and check a part that is larger than a piece.
inline ReadOutcome read_large(ReadPartsCall& call, int32_t part) {
    int64_t offset = call.offsets[part];
    call.part = part, call.found = 0;
    for (uint8_t* target : {call.k, call.v}) {
        uint8_t* data = target + part * call.part_bytes;
        for (int64_t left = call.part_bytes; left > 0;) {
            const int64_t size = std::min(PIECE, left);
            iovec buffer{data, static_cast<size_t>(size)};
            const ReadOutcome outcome = fill(call.descriptor, &buffer, 1, offset, call.error);
            if (outcome != ALL_READ) return outcome;
            call.found = crc32c::of(call.found, data, size);
            data += size, offset += size, left -= size;
        }
    }
    return call.found == call.expected[part] ? ALL_READ : DIFFERENT;
}

inline ReadOutcome read(ReadPartsCall& call) {
    const int64_t both = 2 * call.part_bytes;
    int64_t at_once = std::min<int64_t>(MOST_BUFFERS / 2, PIECE / both);
    for (int32_t first = 0, end; first < call.count; first = end) {
        end = first + 1;
        while (end < call.count && end - first < at_once && call.offsets[end] == call.offsets[end - 1] + both) end++;
        const ReadOutcome outcome = at_once ? read_neighbours(call, first, end) : read_large(call, first);
        if (outcome == ALL_READ) continue;
        if (outcome == DIFFERENT || end - first == 1) return outcome;
        at_once = 1, end = first;    // once more, one after the other: which of them it is
    }
    return ALL_READ;
}

}    // namespace stored
