/* The lines of a metrics page that matter, in one pass: what excerpt.py does line by line, for the compiled build.

   Stems are sorted and none is the beginning of another, so the only one that a line can begin with is the last
   that is not above the line: a binary search. Stems in another order make another excerpt, and no harm. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

enum { BLANKS_MAX = 64, STEMS_MAX = 64, SEPARATOR = 2, TYPE = 7 };

typedef struct {
    const char *text;
    Py_ssize_t size;
} Text;

/* Whether the text from `at` to `end` begins with one of the stems. */
static int begins(const char *at, const char *end, const Text *stems, Py_ssize_t count)
{
    Py_ssize_t low = 0, high = count;
    while (low < high) { /* all below `low` are at most the text, all from `high` on are above it */
        const Py_ssize_t middle = low + (high - low) / 2;
        const Text *stem = &stems[middle];
        const Py_ssize_t shared = end - at < stem->size ? end - at : stem->size;
        const int order = memcmp(stem->text, at, (size_t)shared);
        if (order == 0 && shared == stem->size)
            return 1;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

PyDoc_STRVAR(excerpt_doc, "excerpt(page, stems) -> the lines of the page that begin with one of them (excerpt.py).");

static PyObject *excerpt(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    Text stems[STEMS_MAX];
    if (count != 2 || !PyBytes_Check(arguments[0]) || !PyTuple_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "excerpt takes bytes and a tuple of bytes");
        return NULL;
    }
    const Py_ssize_t known = PyTuple_GET_SIZE(arguments[1]);
    if (known > STEMS_MAX) {
        PyErr_Format(PyExc_ValueError, "more than %d stems", STEMS_MAX);
        return NULL;
    }
    for (Py_ssize_t each = 0; each < known; each++) {
        PyObject *stem = PyTuple_GET_ITEM(arguments[1], each);
        if (!PyBytes_Check(stem) || PyBytes_GET_SIZE(stem) == 0) {
            PyErr_SetString(PyExc_TypeError, "a stem must be bytes, and some");
            return NULL;
        }
        stems[each].text = PyBytes_AS_STRING(stem);
        stems[each].size = PyBytes_GET_SIZE(stem);
    }
    const Py_ssize_t size = PyBytes_GET_SIZE(arguments[0]);
    /* A separator stands for a line at least as long, but for an empty one: that is one byte, and ends no group
       once something is kept; so one more is enough. */
    PyObject *result = PyBytes_FromStringAndSize(NULL, size + SEPARATOR);
    if (result == NULL)
        return NULL;
    const char *at = PyBytes_AS_STRING(arguments[0]), *end = at + size;
    char *kept = PyBytes_AS_STRING(result), *to = kept;
    int others = 0;
    while (at < end) {
        const char *feed = memchr(at, '\n', (size_t)(end - at));
        const char *next = feed == NULL ? end : feed + 1, *start = at;
        while (start < next && (*start == ' ' || *start == '\t'))
            start++;
        const int comment = start < next && *start == '#';
        const int typed = comment && next - start > TYPE && memcmp(start, "# TYPE ", TYPE) == 0;
        if (typed ? begins(start + TYPE, next, stems, known) : !comment && begins(start, next, stems, known)) {
            if (others) {
                memcpy(to, "-\n", SEPARATOR);
                to += SEPARATOR;
                others = 0;
            }
            memcpy(to, at, (size_t)(next - at));
            to += next - at;
        } else if (to == kept || start - at > BLANKS_MAX || !(comment || (start < next && *start == '\n'))) {
            others = 1;
        }
        at = next;
    }
    if (_PyBytes_Resize(&result, to - kept) < 0)
        return NULL;
    return result;
}

static PyMethodDef methods[] = {
    {"excerpt", (PyCFunction)(void (*)(void))excerpt, METH_FASTCALL, excerpt_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "picker.engines._excerpt", "The lines of a metrics page that matter.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__excerpt(void)
{
    return PyModule_Create(&definition);
}
