#include "judge/evidence/merkle.h"

#include <string.h>

static void node(const struct merkle_hash *left, const struct merkle_hash *right,
                 struct merkle_hash *out)
{
    static const uint8_t mark = 1;
    struct sha256 *h = sha256_begin();
    sha256_update(h, &mark, 1);
    sha256_update(h, left->bytes, SHA256_BYTES);
    sha256_update(h, right->bytes, SHA256_BYTES);
    sha256_finish(h, out->bytes);
}

void merkle_leaf(const void *data, size_t length, struct merkle_hash *out)
{
    static const uint8_t mark = 0;
    struct sha256 *h = sha256_begin();
    sha256_update(h, &mark, 1);
    sha256_update(h, data, length);
    sha256_finish(h, out->bytes);
}

/* The largest power of two below count; count > 1. */
static size_t split(size_t count)
{
    size_t half = 1;
    while (half * 2 < count)
        half *= 2;
    return half;
}

void merkle_root(const struct merkle_hash *leaves, size_t count, struct merkle_hash *out)
{
    if (count == 0) {
        sha256_bytes("", 0, out->bytes);
    } else if (count == 1) {
        *out = leaves[0];
    } else {
        const size_t half = split(count);
        struct merkle_hash left, right;
        merkle_root(leaves, half, &left);
        merkle_root(leaves + half, count - half, &right);
        node(&left, &right, out);
    }
}

size_t merkle_prove(const struct merkle_hash *leaves, size_t count, size_t index,
                    struct merkle_hash path[MERKLE_PATH_MOST])
{
    if (count <= 1)
        return 0;
    const size_t half = split(count);
    size_t n;
    if (index < half) {
        n = merkle_prove(leaves, half, index, path);
        merkle_root(leaves + half, count - half, &path[n]);
    } else {
        n = merkle_prove(leaves + half, count - half, index - half, path);
        merkle_root(leaves, half, &path[n]);
    }
    return n + 1;
}

/* RFC 9162 section 2.1.3.2. */
bool merkle_check(const struct merkle_hash *leaf, uint64_t index, uint64_t count,
                  const struct merkle_hash *path, size_t length, const struct merkle_hash *root)
{
    if (index >= count)
        return false;
    uint64_t at = index, last = count - 1;
    struct merkle_hash here = *leaf;
    for (size_t i = 0; i < length; i++) {
        if (last == 0)
            return false;
        if ((at & 1) || at == last) {
            node(&path[i], &here, &here);
            while (!(at & 1) && at != 0) {
                at >>= 1;
                last >>= 1;
            }
        } else {
            node(&here, &path[i], &here);
        }
        at >>= 1;
        last >>= 1;
    }
    return last == 0 && memcmp(here.bytes, root->bytes, SHA256_BYTES) == 0;
}

/* RFC 6962 section 2.1.2: SUBPROOF; whole: the old root is known to who checks. */
static size_t subproof(const struct merkle_hash *leaves, size_t count, size_t before, bool whole,
                       struct merkle_hash path[MERKLE_PATH_MOST])
{
    if (before == count) {
        if (whole)
            return 0;
        merkle_root(leaves, count, &path[0]);
        return 1;
    }
    const size_t half = split(count);
    size_t n;
    if (before <= half) {
        n = subproof(leaves, half, before, whole, path);
        merkle_root(leaves + half, count - half, &path[n]);
    } else {
        n = subproof(leaves + half, count - half, before - half, false, path);
        merkle_root(leaves, half, &path[n]);
    }
    return n + 1;
}

size_t merkle_prove_extends(const struct merkle_hash *leaves, size_t count, size_t before,
                            struct merkle_hash path[MERKLE_PATH_MOST])
{
    return subproof(leaves, count, before, true, path);
}

/* RFC 9162 section 2.1.4.2. */
bool merkle_check_extends(uint64_t before, uint64_t count, const struct merkle_hash *before_root,
                          const struct merkle_hash *root, const struct merkle_hash *path,
                          size_t length)
{
    if (before == 0 || before > count)
        return false;
    if (before == count)
        return length == 0 && memcmp(before_root->bytes, root->bytes, SHA256_BYTES) == 0;
    uint64_t at = before - 1, last = count - 1;
    size_t next = 0;
    while (at & 1) {
        at >>= 1;
        last >>= 1;
    }
    struct merkle_hash old, all;
    if (at == 0) { /* a whole power of two: the old root is where the way begins */
        old = *before_root;
    } else {
        if (length == 0)
            return false;
        old = path[next++];
    }
    all = old;
    for (; next < length; next++) {
        if (last == 0)
            return false;
        if ((at & 1) || at == last) {
            node(&path[next], &old, &old);
            node(&path[next], &all, &all);
            while (!(at & 1) && at != 0) {
                at >>= 1;
                last >>= 1;
            }
        } else {
            node(&all, &path[next], &all);
        }
        at >>= 1;
        last >>= 1;
    }
    return last == 0 && memcmp(old.bytes, before_root->bytes, SHA256_BYTES) == 0 &&
           memcmp(all.bytes, root->bytes, SHA256_BYTES) == 0;
}
