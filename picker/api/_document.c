/* A JSON body less its long strings, in one pass: what document.py lets parsers read in place of the body.

   A prompt is one string of hundreds of kilobytes, and parsers want to know where it lies, not what it
   says. So each string of LONG_BYTES and more is cut out, and a parser reads the short rest: where it
   finds a stand-in, `whole` says what of the body it stands for, by position alone.

   A string is cut out only if it is a valid one: no control character, only JSON's escapes, surrogates in
   pairs. Of anything else, `shorten` returns None and the body is read as it is, so what is valid remains the
   parser's to say. A stand-in is no valid text (0xFF is not UTF-8): a parser that asks for the text of
   a string, not for its place, fails on it, and the body is read as it is. Names of members stay.

   Blocks of 64 bytes become bit masks; escapes are told by the carries of an addition, strings by a prefix xor of
   the quotes, as in Langdale and Lemire, "Parsing Gigabytes of JSON per Second" (2019). Only how bytes become masks
   differs by processor: AVX2 where it is (asked at run time) and SSE2 on x86-64, NEON on ARM64, eight bytes in a
   register anywhere. All give the same masks; tests hold them against each other by `shorten_by`. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if !defined(__GNUC__)
#error "gcc or clang only: without this module document.py does without"
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__AARCH64EL__)
#include <arm_neon.h>
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))

#define BLOCK_BYTES 64
#define LONG_BYTES 1024
#define STAND_IN "\"\xff\""
#define STAND_IN_BYTES 3

/* In `shorten`, a string of the body from quote to quote; in its result, a stand-in and what is missing up to it. */
typedef struct {
    Py_ssize_t at;
    Py_ssize_t end_or_missing;
} Cut;

/* Of 64 bytes, a bit each. */
typedef struct {
    uint64_t quotes, backslashes, controls;
} Masks;

typedef struct {
    const unsigned char *body;
    Py_ssize_t size;
    int in_string;
    Py_ssize_t start;     /* of the string that is open */
    Py_ssize_t low_after; /* where the low half of a surrogate pair has to stand */
    Cut *cuts;
    Py_ssize_t count;
} Scan;

#define EVERY_BYTE(byte) (0x0101010101010101ULL * (byte))

/* Of eight bytes, one in the lowest place first. */
static inline uint64_t read_word(const unsigned char *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* The highest bit of each byte that is below `limit` (at most 0x80). */
static inline uint64_t below(uint64_t word, unsigned char limit)
{
    const uint64_t low = EVERY_BYTE(0x7F);
    return ~(((word & low) + EVERY_BYTE(0x80 - limit)) | word | low);
}

/* The highest bits of eight bytes, side by side. */
static inline uint64_t gathered(uint64_t highest)
{
    return (highest >> 7) * 0x0102040810204080ULL >> 56;
}

static inline void classify_plain(const unsigned char *bytes, Masks *masks)
{
    *masks = (Masks){0, 0, 0};
    for (int at = 0; at < BLOCK_BYTES; at += 8) {
        const uint64_t word = read_word(bytes + at);
        const uint64_t quotes = below(word ^ EVERY_BYTE('"'), 1), backslashes = below(word ^ EVERY_BYTE('\\'), 1);
        const uint64_t controls = below(word, ' ');
        if (!(quotes | backslashes | controls))
            continue;
        masks->quotes |= gathered(quotes) << at;
        masks->backslashes |= gathered(backslashes) << at;
        masks->controls |= gathered(controls) << at;
    }
}

static const unsigned char LETTERS[256] = {
    ['"'] = 1, ['\\'] = 1, ['/'] = 1, ['b'] = 1, ['f'] = 1, ['n'] = 1, ['r'] = 1, ['t'] = 1,
};

/* Which of the escaped bytes are escapes of one letter. */
static inline uint64_t letters_plain(const unsigned char *bytes, uint64_t escaped)
{
    uint64_t letters = 0;
    for (; escaped; escaped &= escaped - 1) {
        const int place = __builtin_ctzll(escaped);
        letters |= (uint64_t)LETTERS[bytes[place]] << place;
    }
    return letters;
}

/* By its low four bits, the one letter that may stand there; `"` and `r`, which share theirs with `b`, are looked for
   by themselves. */
#define LETTER_ROW 1, 0, 'b', 0, 't', 0, 'f', 0, 0, 0, 0, 0, '\\', 0, 'n', '/'

#if defined(__x86_64__)
static inline uint64_t mask_sse2(const __m128i *equal)
{
    uint64_t mask = 0;
    for (int part = 0; part < 4; part++)
        mask |= (uint64_t)(uint32_t)_mm_movemask_epi8(equal[part]) << 16 * part;
    return mask;
}

static inline void classify_sse2(const unsigned char *bytes, Masks *masks)
{
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), below_space = _mm_set1_epi8(0x1F);
    __m128i quotes[4], backslashes[4], controls[4];
    for (int part = 0; part < 4; part++) {
        const __m128i read = _mm_loadu_si128((const __m128i *)bytes + part);
        quotes[part] = _mm_cmpeq_epi8(read, quote);
        backslashes[part] = _mm_cmpeq_epi8(read, backslash);
        controls[part] = _mm_cmpeq_epi8(_mm_min_epu8(read, below_space), read);
    }
    *masks = (Masks){mask_sse2(quotes), mask_sse2(backslashes), mask_sse2(controls)};
}

#define AVX2 __attribute__((target("avx2")))

AVX2 static inline uint64_t mask_avx2(__m256i low, __m256i high)
{
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
}

AVX2 static inline void classify_avx2(const unsigned char *bytes, Masks *masks)
{
    const __m256i low = _mm256_loadu_si256((const __m256i *)bytes), high = _mm256_loadu_si256((const __m256i *)bytes + 1);
    const __m256i quote = _mm256_set1_epi8('"'), backslash = _mm256_set1_epi8('\\'), below_space = _mm256_set1_epi8(0x1F);
    masks->quotes = mask_avx2(_mm256_cmpeq_epi8(low, quote), _mm256_cmpeq_epi8(high, quote));
    masks->backslashes = mask_avx2(_mm256_cmpeq_epi8(low, backslash), _mm256_cmpeq_epi8(high, backslash));
    masks->controls = mask_avx2(_mm256_cmpeq_epi8(_mm256_min_epu8(low, below_space), low),
                                _mm256_cmpeq_epi8(_mm256_min_epu8(high, below_space), high));
}

AVX2 static inline __m256i letter(__m256i bytes)
{
    const __m256i row = _mm256_broadcastsi128_si256(_mm_setr_epi8(LETTER_ROW));
    const __m256i found = _mm256_shuffle_epi8(row, _mm256_and_si256(bytes, _mm256_set1_epi8(15)));
    const __m256i r = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('r')), quote = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('"'));
    return _mm256_or_si256(_mm256_cmpeq_epi8(found, bytes), _mm256_or_si256(r, quote));
}

AVX2 static inline uint64_t letters_avx2(const unsigned char *bytes, uint64_t escaped)
{
    const __m256i *read = (const __m256i *)bytes;
    return escaped & mask_avx2(letter(_mm256_loadu_si256(read)), letter(_mm256_loadu_si256(read + 1)));
}
#elif defined(__AARCH64EL__)
/* NEON has no instruction for it: each byte keeps the bit of its place, and three rounds of adding neighbours bring
   eight together. */
static inline uint64_t mask_neon(const uint8x16_t *equal)
{
    const uint8x16_t places = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ULL));
    uint8x16_t low = vpaddq_u8(vandq_u8(equal[0], places), vandq_u8(equal[1], places));
    const uint8x16_t high = vpaddq_u8(vandq_u8(equal[2], places), vandq_u8(equal[3], places));
    low = vpaddq_u8(low, high);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(low, low)), 0);
}

static inline void classify_neon(const unsigned char *bytes, Masks *masks)
{
    uint8x16_t quotes[4], backslashes[4], controls[4];
    for (int part = 0; part < 4; part++) {
        const uint8x16_t read = vld1q_u8(bytes + 16 * part);
        quotes[part] = vceqq_u8(read, vdupq_n_u8('"'));
        backslashes[part] = vceqq_u8(read, vdupq_n_u8('\\'));
        controls[part] = vcltq_u8(read, vdupq_n_u8(' '));
    }
    *masks = (Masks){mask_neon(quotes), mask_neon(backslashes), mask_neon(controls)};
}

static inline uint64_t letters_neon(const unsigned char *bytes, uint64_t escaped)
{
    static const unsigned char row[16] = {LETTER_ROW};
    uint8x16_t letters[4];
    for (int part = 0; part < 4; part++) {
        const uint8x16_t read = vld1q_u8(bytes + 16 * part);
        const uint8x16_t found = vqtbl1q_u8(vld1q_u8(row), vandq_u8(read, vdupq_n_u8(15)));
        const uint8x16_t r = vceqq_u8(read, vdupq_n_u8('r')), quote = vceqq_u8(read, vdupq_n_u8('"'));
        letters[part] = vorrq_u8(vceqq_u8(found, read), vorrq_u8(r, quote));
    }
    return escaped & mask_neon(letters);
}
#endif

/* Which bytes stand behind a backslash that is not itself escaped; `next`: whether the next block's first one does. */
static inline uint64_t escaped_of(uint64_t backslashes, uint64_t *next)
{
    const uint64_t even = 0x5555555555555555ULL;
    backslashes &= ~*next;
    const uint64_t follows = backslashes << 1 | *next;
    unsigned long long ends;
    *next = __builtin_uaddll_overflow(backslashes & ~even & ~follows, backslashes, &ends);
    return (even ^ (uint64_t)ends << 1) & follows;
}

static inline uint64_t prefix_xor(uint64_t bits)
{
    for (int by = 1; by < 64; by <<= 1)
        bits ^= bits << by;
    return bits;
}

/* The number of an escape whose `u` should stand at `at`; negative where it is none. */
static inline int code_unit(const Scan *scan, Py_ssize_t at)
{
    int value = 0;
    if (at + 4 >= scan->size || scan->body[at] != 'u')
        return -1;
    for (int digit = 1; digit <= 4; digit++) {
        const unsigned char byte = scan->body[at + digit], letter = byte | 0x20;
        if (byte >= '0' && byte <= '9')
            value = value << 4 | (byte - '0');
        else if (letter >= 'a' && letter <= 'f')
            value = value << 4 | (letter - 'a' + 10);
        else
            return -1;
    }
    return value;
}

static inline int unicode_escape(Scan *scan, Py_ssize_t at)
{
    const int unit = code_unit(scan, at);
    if (unit < 0)
        return 0;
    if (unit < 0xD800 || unit > 0xDFFF)
        return scan->low_after != at;
    if (unit >= 0xDC00)
        return scan->low_after == at;
    if (scan->low_after == at || at + 6 >= scan->size || scan->body[at + 5] != '\\' || scan->body[at + 6] != 'u')
        return 0;
    scan->low_after = at + 6;
    return 1;
}

static int is_name(const Scan *scan, Py_ssize_t at)
{
    while (at < scan->size && strchr(" \t\r\n", scan->body[at]) != NULL && scan->body[at] != 0)
        at++;
    return at < scan->size && scan->body[at] == ':';
}

static inline void quote(Scan *scan, Py_ssize_t at)
{
    scan->in_string = !scan->in_string;
    if (scan->in_string)
        scan->start = at;
    else if (at + 1 - scan->start >= LONG_BYTES && !is_name(scan, at + 1))
        scan->cuts[scan->count++] = (Cut){scan->start, at + 1};
}

typedef void Classify(const unsigned char *bytes, Masks *masks);
typedef uint64_t Letters(const unsigned char *bytes, uint64_t escaped);

/* The 64 bytes that stand at `at` of the body; 0 where something in them is unusual. */
ALWAYS_INLINE int block(Classify *classify, Letters *letters, Scan *scan, const unsigned char *bytes, Py_ssize_t at,
                        uint64_t *escaped_next)
{
    Masks masks;
    classify(bytes, &masks);
    const uint64_t escaped = escaped_of(masks.backslashes, escaped_next);
    uint64_t quotes = masks.quotes & ~escaped;
    const uint64_t inside = (quotes ? prefix_xor(quotes) : 0) ^ (scan->in_string ? ~0ULL : 0);
    if (inside & masks.controls || masks.backslashes & ~inside)
        return 0;
    uint64_t units = escaped & inside;
    if (units)
        units &= ~letters(bytes, units);
    for (; units; units &= units - 1)
        if (!unicode_escape(scan, at + __builtin_ctzll(units)))
            return 0;
    for (; quotes; quotes &= quotes - 1)
        quote(scan, at + __builtin_ctzll(quotes));
    return 1;
}

ALWAYS_INLINE int scan_with(Classify *classify, Letters *letters, Scan *scan)
{
    uint64_t escaped_next = 0;
    Py_ssize_t at = 0;
    for (; at + BLOCK_BYTES <= scan->size; at += BLOCK_BYTES)
        if (!block(classify, letters, scan, scan->body + at, at, &escaped_next))
            return 0;
    unsigned char rest[BLOCK_BYTES];
    memset(rest, ' ', sizeof rest);
    memcpy(rest, scan->body + at, scan->size - at);
    return block(classify, letters, scan, rest, at, &escaped_next) && !scan->in_string;
}

static int scan_plain(Scan *scan) { return scan_with(classify_plain, letters_plain, scan); }
#if defined(__x86_64__)
static int scan_sse2(Scan *scan) { return scan_with(classify_sse2, letters_plain, scan); }
AVX2 static int scan_avx2(Scan *scan) { return scan_with(classify_avx2, letters_avx2, scan); }
#elif defined(__AARCH64EL__)
static int scan_neon(Scan *scan) { return scan_with(classify_neon, letters_neon, scan); }
#endif

/* The ways there are, the best first. */
static struct Way {
    const char *name;
    int (*scan)(Scan *);
} WAYS[] = {
#if defined(__x86_64__)
    {"avx2", scan_avx2},
    {"sse2", scan_sse2},
#elif defined(__AARCH64EL__)
    {"neon", scan_neon},
#endif
    {"plain", scan_plain},
    {NULL, NULL},
};

static int runs_here(const struct Way *way)
{
#if defined(__x86_64__)
    return way->scan != scan_avx2 || __builtin_cpu_supports("avx2");
#else
    return 1;
#endif
}

static const struct Way *best;

/* (the body with stand-ins, where they are) */
static PyObject *shortened(const Scan *scan)
{
    Py_ssize_t size = scan->size;
    for (Py_ssize_t at = 0; at < scan->count; at++)
        size -= scan->cuts[at].end_or_missing - scan->cuts[at].at - STAND_IN_BYTES;
    PyObject *json = PyBytes_FromStringAndSize(NULL, size);
    if (json == NULL)
        return NULL;
    char *out = PyBytes_AS_STRING(json);
    Py_ssize_t written = 0, read = 0;
    for (Py_ssize_t at = 0; at < scan->count; at++) {
        const Cut cut = scan->cuts[at];
        memcpy(out + written, scan->body + read, cut.at - read);
        written += cut.at - read;
        read = cut.end_or_missing;
        memcpy(out + written, STAND_IN, STAND_IN_BYTES);
        scan->cuts[at] = (Cut){written, read - written - STAND_IN_BYTES};
        written += STAND_IN_BYTES;
    }
    memcpy(out + written, scan->body + read, scan->size - read);
    PyObject *cuts = PyBytes_FromStringAndSize((const char *)scan->cuts, scan->count * (Py_ssize_t)sizeof(Cut));
    if (cuts == NULL) {
        Py_DECREF(json);
        return NULL;
    }
    return Py_BuildValue("(NN)", json, cuts);
}

PyDoc_STRVAR(shorten_doc,
             "shorten(body) -> (JSON with a stand-in for each long string, where they are); None: read the body itself.");

static PyObject *shortened_by(const struct Way *way, PyObject *body)
{
    Py_buffer view;
    if (PyObject_GetBuffer(body, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result = NULL;
    Scan scan = {.body = view.buf, .size = view.len, .low_after = -1};
    scan.cuts = PyMem_Malloc((view.len / LONG_BYTES + 1) * sizeof(Cut));
    if (scan.cuts == NULL)
        PyErr_NoMemory();
    else if (way->scan(&scan) && scan.count)
        result = shortened(&scan);
    else
        result = Py_NewRef(Py_None);
    PyMem_Free(scan.cuts);
    PyBuffer_Release(&view);
    return result;
}

static PyObject *shorten(PyObject *module, PyObject *body)
{
    return shortened_by(best, body);
}

PyDoc_STRVAR(shorten_by_doc, "shorten_by(way, body): `shorten` by one of WAYS. For tests.");

static PyObject *shorten_by(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2 || !PyUnicode_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "shorten_by takes the name of a way and a body");
        return NULL;
    }
    for (const struct Way *way = WAYS; way->name != NULL; way++)
        if (runs_here(way) && PyUnicode_CompareWithASCIIString(arguments[0], way->name) == 0)
            return shortened_by(way, arguments[1]);
    PyErr_Format(PyExc_ValueError, "this processor has no way %R", arguments[0]);
    return NULL;
}

/* What is missing before `at`, a place in the shortened body outside its stand-ins. */
static Py_ssize_t missing(const char *cuts, Py_ssize_t count, Py_ssize_t at)
{
    Py_ssize_t low = 0;
    Cut cut = {0, 0}, found = {0, 0};
    while (low < count) {
        const Py_ssize_t middle = low + (count - low) / 2;
        memcpy(&cut, cuts + middle * (Py_ssize_t)sizeof cut, sizeof cut);
        if (cut.at < at) {
            found = cut;
            low = middle + 1;
        } else
            count = middle;
    }
    return found.end_or_missing;
}

PyDoc_STRVAR(whole_doc, "whole(part, json, cuts, body) -> the slice of `body`, a memoryview, that `part` of `json` stands for.");

static PyObject *whole(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 4 || !PyBytes_Check(arguments[1]) || !PyBytes_Check(arguments[2]) || !PyMemoryView_Check(arguments[3])) {
        PyErr_SetString(PyExc_TypeError, "whole takes a part, bytes, bytes and a memoryview");
        return NULL;
    }
    Py_buffer part;
    if (PyObject_GetBuffer(arguments[0], &part, PyBUF_SIMPLE) < 0)
        return NULL;
    const char *cuts = PyBytes_AS_STRING(arguments[2]);
    const Py_ssize_t cut_count = PyBytes_GET_SIZE(arguments[2]) / (Py_ssize_t)sizeof(Cut);
    const uintptr_t json = (uintptr_t)PyBytes_AS_STRING(arguments[1]), begin = (uintptr_t)part.buf;
    const Py_ssize_t from = (Py_ssize_t)(begin - json), to = from + part.len;
    const int is_part = begin >= json && to <= PyBytes_GET_SIZE(arguments[1]);
    PyBuffer_Release(&part);
    if (!is_part) {
        PyErr_SetString(PyExc_ValueError, "not a part of the shortened body");
        return NULL;
    }
    return PySequence_GetSlice(arguments[3], from + missing(cuts, cut_count, from), to + missing(cuts, cut_count, to));
}

static PyMethodDef methods[] = {
    {"shorten", shorten, METH_O, shorten_doc},
    {"shorten_by", (PyCFunction)(void (*)(void))shorten_by, METH_FASTCALL, shorten_by_doc},
    {"whole", (PyCFunction)(void (*)(void))whole, METH_FASTCALL, whole_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "picker.api._document", "A JSON body less its long strings.", -1, methods, NULL, NULL, NULL, NULL,
};

/* WAYS: the names of those that run on this processor; the first is what `shorten` takes. */
static int add_ways(PyObject *module)
{
    PyObject *names = PyList_New(0);
    int done = names != NULL;
    for (const struct Way *way = WAYS; done && way->name != NULL; way++) {
        if (!runs_here(way))
            continue;
        if (best == NULL)
            best = way;
        PyObject *name = PyUnicode_FromString(way->name);
        done = name != NULL && PyList_Append(names, name) == 0;
        Py_XDECREF(name);
    }
    PyObject *ways = done ? PyList_AsTuple(names) : NULL;
    Py_XDECREF(names);
    done = ways != NULL && PyModule_AddObjectRef(module, "WAYS", ways) == 0;
    Py_XDECREF(ways);
    return done;
}

PyMODINIT_FUNC PyInit__document(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && !add_ways(module)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
