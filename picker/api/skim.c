/* A JSON body less its long strings, in one pass: what document.py lets parsers read in place of the body.

   A prompt is one string of hundreds of kilobytes, and parsers want to know where it lies, not what it
   says. So each string of LONG_BYTES and more is cut out, and a parser reads the short rest: where it
   finds a stand-in, `whole` says what of the body it stands for, by position alone.

   A string is cut out only if it is a valid one: no control character, only JSON's escapes, surrogates in
   pairs. Of anything else, `shorten` returns None and the body is read as it is, so what is valid remains the
   parser's to say. A stand-in is no valid text (0xFF is not UTF-8): a parser that asks for the text of
   a string, not for its place, fails on it, and the body is read as it is. Names of members stay.

   Blocks of 64 bytes become bit masks by AVX2; escapes are told by the carries of an addition, strings by a
   prefix xor of the quotes, as in Langdale and Lemire, "Parsing Gigabytes of JSON per Second" (2019). */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if !defined(__x86_64__) || !defined(__GNUC__)
#error "x86-64 and gcc or clang only: leave this module out, and document.py does without"
#endif
#include <immintrin.h>

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
    uint64_t quotes, backslashes, controls, escapable;
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

__attribute__((target("avx2"))) static inline uint64_t mask_of(__m256i low, __m256i high)
{
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
}

__attribute__((target("avx2"))) static inline uint64_t equal(__m256i low, __m256i high, char wanted)
{
    const __m256i all = _mm256_set1_epi8(wanted);
    return mask_of(_mm256_cmpeq_epi8(low, all), _mm256_cmpeq_epi8(high, all));
}

/* Escapes of one letter. By its low four bits, the one that may stand there; `"` and `r`, which share theirs with
   `b`, are looked for by themselves. */
__attribute__((target("avx2"))) static inline __m256i escapes(__m256i bytes)
{
    const __m128i row = _mm_setr_epi8(1, 0, 'b', 0, 't', 0, 'f', 0, 0, 0, 0, 0, '\\', 0, 'n', '/');
    const __m256i found = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(row), _mm256_and_si256(bytes, _mm256_set1_epi8(15)));
    return _mm256_or_si256(_mm256_cmpeq_epi8(found, bytes), _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('r')));
}

__attribute__((target("avx2"))) static inline void classify(const unsigned char *block, Masks *masks)
{
    const __m256i low = _mm256_loadu_si256((const __m256i *)block);
    const __m256i high = _mm256_loadu_si256((const __m256i *)(block + 32));
    const __m256i below_space = _mm256_set1_epi8(0x1F);
    masks->quotes = equal(low, high, '"');
    masks->backslashes = equal(low, high, '\\');
    masks->controls = mask_of(_mm256_cmpeq_epi8(_mm256_min_epu8(low, below_space), low),
                              _mm256_cmpeq_epi8(_mm256_min_epu8(high, below_space), high));
    masks->escapable = mask_of(escapes(low), escapes(high)) | masks->quotes;
}

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

/* One block; 0 where something in it is unusual. */
static inline __attribute__((always_inline)) int block(Scan *scan, const Masks *masks, Py_ssize_t at, uint64_t *escaped_next)
{
    const uint64_t escaped = escaped_of(masks->backslashes, escaped_next);
    uint64_t quotes = masks->quotes & ~escaped;
    const uint64_t inside = (quotes ? prefix_xor(quotes) : 0) ^ (scan->in_string ? ~0ULL : 0);
    if (inside & masks->controls || masks->backslashes & ~inside)
        return 0;
    for (uint64_t units = escaped & ~masks->escapable & inside; units; units &= units - 1)
        if (!unicode_escape(scan, at + __builtin_ctzll(units)))
            return 0;
    for (; quotes; quotes &= quotes - 1)
        quote(scan, at + __builtin_ctzll(quotes));
    return 1;
}

__attribute__((target("avx2"))) static int scan_all(Scan *scan)
{
    Masks masks;
    uint64_t escaped_next = 0;
    Py_ssize_t at = 0;
    for (; at + BLOCK_BYTES <= scan->size; at += BLOCK_BYTES) {
        classify(scan->body + at, &masks);
        if (!block(scan, &masks, at, &escaped_next))
            return 0;
    }
    unsigned char rest[BLOCK_BYTES];
    memset(rest, ' ', sizeof rest);
    memcpy(rest, scan->body + at, scan->size - at);
    classify(rest, &masks);
    return block(scan, &masks, at, &escaped_next) && !scan->in_string;
}

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

static PyObject *shorten(PyObject *module, PyObject *body)
{
    Py_buffer view;
    if (PyObject_GetBuffer(body, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result = NULL;
    Scan scan = {.body = view.buf, .size = view.len, .low_after = -1};
    scan.cuts = PyMem_Malloc((view.len / LONG_BYTES + 1) * sizeof(Cut));
    if (scan.cuts == NULL)
        PyErr_NoMemory();
    else if (scan_all(&scan) && scan.count)
        result = shortened(&scan);
    else
        result = Py_NewRef(Py_None);
    PyMem_Free(scan.cuts);
    PyBuffer_Release(&view);
    return result;
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
    {"whole", (PyCFunction)(void (*)(void))whole, METH_FASTCALL, whole_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "picker.api.skim", "A JSON body less its long strings.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_skim(void)
{
    if (!__builtin_cpu_supports("avx2")) {
        PyErr_SetString(PyExc_ImportError, "this processor has no AVX2");
        return NULL;
    }
    return PyModule_Create(&definition);
}
