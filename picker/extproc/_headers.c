/* The headers of a message in one call: what headers.py reads pair by pair, for the compiled build.

   HttpHeaders{headers = 1{repeated 1{key = 1, raw_value = 3}}, end_of_stream = 3}, in the one order in
   which proxies write it. Whatever else it is, `None` says so, and protobuf reads it. A test holds
   this against headers.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#define NAMES_MAX 64
#define HEADERS_MAX 4096 /* of one message, as in headers.py */

typedef struct {
    const unsigned char *at, *end;
} Bytes;

/* A field of wire type 2: its tag, a length of at most four bytes, its content, which may not go beyond. */
static int field(Bytes *from, unsigned char tag, Bytes *content)
{
    const unsigned char *at = from->at;
    if (at >= from->end || *at++ != tag)
        return 0;
    size_t length = 0;
    for (int shift = 0;; shift += 7) {
        if (shift > 21 || at >= from->end)
            return 0;
        length |= (size_t)(*at & 0x7F) << shift;
        if (*at++ < 0x80)
            break;
    }
    if (length > (size_t)(from->end - at))
        return 0;
    content->at = at;
    content->end = from->at = at + length;
    return 1;
}

typedef struct {
    Py_ssize_t count;
    PyObject *name[NAMES_MAX];
    const char *text[NAMES_MAX];
    Py_ssize_t length[NAMES_MAX];
} Names;

static int names_of(PyObject *tuple, Names *names)
{
    names->count = PyTuple_GET_SIZE(tuple);
    if (names->count > NAMES_MAX) {
        PyErr_Format(PyExc_ValueError, "more than %d names", NAMES_MAX);
        return 0;
    }
    for (Py_ssize_t each = 0; each < names->count; each++) {
        names->name[each] = PyTuple_GET_ITEM(tuple, each);
        names->text[each] = PyUnicode_AsUTF8AndSize(names->name[each], &names->length[each]);
        if (names->text[each] == NULL)
            return 0;
    }
    return 1;
}

/* Which of the names it is; -1: none, -2: none, and not as HTTP/2 spells names. */
static Py_ssize_t name_of(Bytes key, const Names *names)
{
    const Py_ssize_t length = key.end - key.at;
    for (Py_ssize_t each = 0; each < names->count; each++)
        if (names->length[each] == length && memcmp(names->text[each], key.at, (size_t)length) == 0)
            return each;
    int lower = 0;
    for (const unsigned char *at = key.at; at < key.end; at++) {
        if (*at >= 'A' && *at <= 'Z')
            return -2;
        lower |= *at >= 'a' && *at <= 'z';
    }
    return lower ? -1 : -2;
}

/* 1: read; 0: of another shape; -1: an error. */
static int pairs(Bytes list, const Names *names, PyObject *found)
{
    Bytes pair, key, content;
    for (int count = 0; list.at < list.end; count++) {
        if (count == HEADERS_MAX)
            return 0;
        if (!field(&list, 0x0A, &pair) || pair.end - pair.at < 2 || pair.at[1] > 0x7F || !field(&pair, 0x0A, &key))
            return 0;
        const Py_ssize_t which = name_of(key, names);
        if (which == -2)
            return 0;
        if (which == -1)
            continue;
        if (!field(&pair, 0x1A, &content) || pair.at != pair.end)
            return 0;
        PyObject *value = PyUnicode_DecodeUTF8((const char *)content.at, content.end - content.at, NULL);
        if (value == NULL) {
            if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
                return -1;
            PyErr_Clear();
            return 0;
        }
        PyObject *first = PyDict_SetDefault(found, names->name[which], value);
        Py_DECREF(value);
        if (first == NULL)
            return -1;
    }
    return 1;
}

PyDoc_STRVAR(headers_doc,
"headers(message, names) -> (what the message says of these names, where its headers end: negative where the stream\n"
"ends with them), or None for another shape. names: a tuple of strings, 64 at most.");

static PyObject *headers(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2 || !PyBytes_Check(arguments[0]) || !PyTuple_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "headers takes a message's bytes and a tuple of names");
        return NULL;
    }
    Names names;
    if (!names_of(arguments[1], &names))
        return NULL;
    const unsigned char *start = (const unsigned char *)PyBytes_AS_STRING(arguments[0]);
    Bytes message = {start, start + PyBytes_GET_SIZE(arguments[0])}, part, list;
    if (message.at == message.end || !field(&message, *start, &part) || !field(&part, 0x0A, &list))
        Py_RETURN_NONE;
    const int last = part.end - part.at == 2 && part.at[0] == 0x18 && part.at[1] == 1;
    if (part.at != part.end && !last)
        Py_RETURN_NONE;
    PyObject *found = PyDict_New();
    if (found == NULL)
        return NULL;
    const int read = pairs(list, &names, found);
    if (read <= 0) {
        Py_DECREF(found);
        if (read < 0)
            return NULL;
        Py_RETURN_NONE;
    }
    const Py_ssize_t end = part.end - start;
    PyObject *number = PyLong_FromSsize_t(last ? -end : end), *answer = number ? PyTuple_New(2) : NULL;
    if (answer == NULL) {
        Py_XDECREF(number);
        Py_DECREF(found);
        return NULL;
    }
    PyTuple_SET_ITEM(answer, 0, found);
    PyTuple_SET_ITEM(answer, 1, number);
    return answer;
}

static PyMethodDef methods[] = {
    {"headers", (PyCFunction)(void (*)(void))headers, METH_FASTCALL, headers_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "picker.extproc._headers", "The headers of a message in one call.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__headers(void) { return PyModule_Create(&definition); }
