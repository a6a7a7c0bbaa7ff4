/* Chained block hashes in one call: what blocks.py does block by block, for the compiled build.

   A block has 1,024 bytes, so this is XXH3 (64 bit, with a seed) of inputs of just that length: one
   round of 16 stripes, none of the cases for other lengths. The algorithm is that of the
   specification, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md; tests hold it
   against the xxhash package. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "little-endian machines only: leave this module out, and blocks.py does without"
#endif
#if !defined(__SIZEOF_INT128__)
#error "64-bit machines with gcc or clang only: leave this module out, and blocks.py does without"
#endif

#define BLOCK_BYTES 1024
#define STRIPE_BYTES 64
#define LANES 8
#define SECRET_BYTES 192
#define STRIPES (BLOCK_BYTES / STRIPE_BYTES)
#define LAST_SECRET (SECRET_BYTES - STRIPE_BYTES - 7)

static const uint64_t PRIME32_1 = 0x9E3779B1U, PRIME32_2 = 0x85EBCA77U, PRIME32_3 = 0xC2B2AE3DU;
static const uint64_t PRIME64_1 = 0x9E3779B185EBCA87ULL, PRIME64_2 = 0xC2B2AE3D27D4EB4FULL,
                      PRIME64_3 = 0x165667B19E3779F9ULL, PRIME64_4 = 0x85EBCA77C2B2AE63ULL,
                      PRIME64_5 = 0x27D4EB2F165667C5ULL;

static const unsigned char SECRET[SECRET_BYTES] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint64_t read64(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline void accumulate(uint64_t *lane, const unsigned char *stripe, const unsigned char *secret)
{
    uint64_t data[LANES], key[LANES];
    memcpy(data, stripe, sizeof data);
    memcpy(key, secret, sizeof key);
    for (int at = 0; at < LANES; at++) {
        const uint64_t mixed = data[at] ^ key[at];
        lane[at ^ 1] += data[at];
        lane[at] += (mixed & 0xFFFFFFFFU) * (mixed >> 32);
    }
}

static void round_plain(uint64_t *lane, const unsigned char *block, const unsigned char *secret)
{
    for (int stripe = 0; stripe < STRIPES - 1; stripe++)
        accumulate(lane, block + stripe * STRIPE_BYTES, secret + stripe * 8);
    accumulate(lane, block + BLOCK_BYTES - STRIPE_BYTES, secret + LAST_SECRET);
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

__attribute__((target("avx2"))) static inline __m256i accumulated(__m256i lanes, const unsigned char *data, const unsigned char *secret)
{
    const __m256i read = _mm256_loadu_si256((const __m256i *)data);
    const __m256i mixed = _mm256_xor_si256(read, _mm256_loadu_si256((const __m256i *)secret));
    const __m256i product = _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32));
    const __m256i swapped = _mm256_shuffle_epi32(read, _MM_SHUFFLE(1, 0, 3, 2));
    return _mm256_add_epi64(lanes, _mm256_add_epi64(product, swapped));
}

/* The same, four lanes at a time. */
__attribute__((target("avx2"))) static void round_avx2(uint64_t *lane, const unsigned char *block, const unsigned char *secret)
{
    __m256i low = _mm256_loadu_si256((const __m256i *)lane), high = _mm256_loadu_si256((const __m256i *)(lane + 4));
    for (int stripe = 0; stripe < STRIPES; stripe++) {
        const unsigned char *data = block + stripe * STRIPE_BYTES;
        const unsigned char *key = secret + (stripe < STRIPES - 1 ? stripe * 8 : LAST_SECRET);
        low = accumulated(low, data, key);
        high = accumulated(high, data + 32, key + 32);
    }
    _mm256_storeu_si256((__m256i *)lane, low);
    _mm256_storeu_si256((__m256i *)(lane + 4), high);
}
#elif defined(__AARCH64EL__)
#include <arm_neon.h>

/* The same, two lanes at a time: on this architecture compilers do not find it by themselves. */
static void round_neon(uint64_t *lane, const unsigned char *block, const unsigned char *secret)
{
    uint64x2_t lanes[LANES / 2];
    for (int pair = 0; pair < LANES / 2; pair++)
        lanes[pair] = vld1q_u64(lane + 2 * pair);
    for (int stripe = 0; stripe < STRIPES; stripe++) {
        const unsigned char *data = block + stripe * STRIPE_BYTES;
        const unsigned char *key = secret + (stripe < STRIPES - 1 ? stripe * 8 : LAST_SECRET);
        for (int pair = 0; pair < LANES / 2; pair++) {
            const uint64x2_t read = vreinterpretq_u64_u8(vld1q_u8(data + 16 * pair));
            const uint64x2_t mixed = veorq_u64(read, vreinterpretq_u64_u8(vld1q_u8(key + 16 * pair)));
            const uint64x2_t swapped = vaddq_u64(lanes[pair], vextq_u64(read, read, 1));
            lanes[pair] = vmlal_u32(swapped, vmovn_u64(mixed), vshrn_n_u64(mixed, 32));
        }
    }
    for (int pair = 0; pair < LANES / 2; pair++)
        vst1q_u64(lane + 2 * pair, lanes[pair]);
}
#endif

typedef void Round(uint64_t *, const unsigned char *, const unsigned char *);
static Round *round_of = round_plain;

static inline uint64_t folded(uint64_t left, uint64_t right)
{
    const unsigned __int128 product = (unsigned __int128)left * right;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t block_hash(Round *round, const unsigned char *block, uint64_t seed)
{
    unsigned char secret[SECRET_BYTES];
    for (int at = 0; at < SECRET_BYTES; at += 16) {
        const uint64_t low = read64(SECRET + at) + seed, high = read64(SECRET + at + 8) - seed;
        memcpy(secret + at, &low, 8);
        memcpy(secret + at + 8, &high, 8);
    }
    uint64_t lane[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    round(lane, block, secret);
    uint64_t hash = BLOCK_BYTES * PRIME64_1;
    for (int at = 0; at < LANES; at += 2)
        hash += folded(lane[at] ^ read64(secret + 11 + 8 * at), lane[at + 1] ^ read64(secret + 19 + 8 * at));
    hash ^= hash >> 37;
    hash *= 0x165667919E3779F9ULL;
    return hash ^ hash >> 32;
}

/* A chain in the making: blocks are hashed where they lie, but for one that begins in one piece and ends in another. */
typedef struct {
    Round *round;
    uint64_t link;
    unsigned char begun[BLOCK_BYTES];
    Py_ssize_t begun_bytes;
    char *out;
} Chain;

static void add_block(Chain *chain, const unsigned char *block)
{
    chain->link = block_hash(chain->round, block, chain->link);
    memcpy(chain->out, &chain->link, sizeof chain->link);
    chain->out += sizeof chain->link;
}

static void add_piece(Chain *chain, const unsigned char *piece, Py_ssize_t size)
{
    if (chain->begun_bytes) {
        const Py_ssize_t wanted = BLOCK_BYTES - chain->begun_bytes, taken = size < wanted ? size : wanted;
        memcpy(chain->begun + chain->begun_bytes, piece, taken);
        chain->begun_bytes += taken;
        if (chain->begun_bytes < BLOCK_BYTES)
            return;
        add_block(chain, chain->begun);
        piece += taken;
        size -= taken;
    }
    for (; size >= BLOCK_BYTES; piece += BLOCK_BYTES, size -= BLOCK_BYTES)
        add_block(chain, piece);
    memcpy(chain->begun, piece, size);
    chain->begun_bytes = size;
}

PyDoc_STRVAR(links_doc, "links(seed, pieces) -> the hash of each full block of their sum, each seeded with the one before: native "
                        "uint64 as bytes.");

static PyObject *linked(Round *round, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2 || !PyList_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "links takes a seed and a list of pieces");
        return NULL;
    }
    Chain chain = {.round = round, .link = PyLong_AsUnsignedLongLongMask(arguments[0])};
    if (chain.link == (uint64_t)-1 && PyErr_Occurred())
        return NULL;
    const Py_ssize_t pieces = PyList_GET_SIZE(arguments[1]);
    Py_buffer *views = PyMem_Calloc(pieces + 1, sizeof *views);
    if (views == NULL)
        return PyErr_NoMemory();
    PyObject *result = NULL;
    Py_ssize_t opened = 0, size = 0;
    for (; opened < pieces; opened++) {
        if (PyObject_GetBuffer(PyList_GET_ITEM(arguments[1], opened), &views[opened], PyBUF_SIMPLE) < 0)
            break;
        size += views[opened].len;
    }
    if (opened == pieces)
        result = PyBytes_FromStringAndSize(NULL, size / BLOCK_BYTES * (Py_ssize_t)sizeof chain.link);
    if (result != NULL) {
        chain.out = PyBytes_AS_STRING(result);
        for (Py_ssize_t at = 0; at < pieces; at++)
            add_piece(&chain, views[at].buf, views[at].len);
    }
    while (opened > 0)
        PyBuffer_Release(&views[--opened]);
    PyMem_Free(views);
    return result;
}

static PyObject *links(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    return linked(round_of, arguments, count);
}

PyDoc_STRVAR(links_plain_doc, "links(seed, pieces), without what only some processors have. For tests.");

static PyObject *links_plain(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    return linked(round_plain, arguments, count);
}

static PyMethodDef methods[] = {
    {"links", (PyCFunction)(void (*)(void))links, METH_FASTCALL, links_doc},
    {"links_plain", (PyCFunction)(void (*)(void))links_plain, METH_FASTCALL, links_plain_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "picker.prefix._blocks", "Chained block hashes in one call.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__blocks(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx2"))
        round_of = round_avx2;
#elif defined(__AARCH64EL__)
    round_of = round_neon;
#endif
    return PyModule_Create(&definition);
}
