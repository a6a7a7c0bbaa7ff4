/* Messages and DATA frames, for the compiled build: of a large message each byte is copied once on its way in, and
   not on its way out.

   `Assembly` puts a message together from DATA frames; `data_frames` cuts one into them, `data_frame` makes the
   beginning of one that fits. All are what bulk.py does in Python, to the same results. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#define HEADER_BYTES 9
#define PREFIX_BYTES 5

typedef struct {
    PyObject_HEAD
    PyObject *bytes; /* ours alone until the message is whole; NULL before the first byte and after `whole` */
    Py_ssize_t length, filled;
} Assembly;

/* Memory follows what has come, not what a peer says will come: twice that much, at most. */
static int reserve(Assembly *self, Py_ssize_t more)
{
    const Py_ssize_t needed = self->filled + more;
    if (self->bytes != NULL && needed <= PyBytes_GET_SIZE(self->bytes))
        return 1;
    const Py_ssize_t size = needed < self->length / 2 ? 2 * needed : self->length;
    if (self->bytes == NULL)
        self->bytes = PyBytes_FromStringAndSize(NULL, size);
    else
        _PyBytes_Resize(&self->bytes, size);
    if (self->bytes == NULL)
        self->filled = 0;
    return self->bytes != NULL;
}

static void put(Assembly *self, const char *from, Py_ssize_t size)
{
    memcpy(PyBytes_AS_STRING(self->bytes) + self->filled, from, size);
    self->filled += size;
}

/* The buffer and the numbers that both methods begin with, checked. */
static int slice_of(PyObject *const *arguments, Py_buffer *data, Py_ssize_t *start, Py_ssize_t *stop)
{
    *start = PyLong_AsSsize_t(arguments[1]);
    *stop = PyLong_AsSsize_t(arguments[2]);
    if (PyErr_Occurred() || PyObject_GetBuffer(arguments[0], data, PyBUF_SIMPLE) < 0)
        return 0;
    if (*start >= 0 && *start <= *stop && *stop <= data->len)
        return 1;
    PyBuffer_Release(data);
    PyErr_SetString(PyExc_ValueError, "no such slice");
    return 0;
}

PyDoc_STRVAR(add_doc, "add(data, start, stop): the message goes on with data[start:stop].");

static PyObject *add(Assembly *self, PyObject *const *arguments, Py_ssize_t count)
{
    Py_buffer data;
    Py_ssize_t start, stop;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "add takes 3 arguments");
        return NULL;
    }
    if (!slice_of(arguments, &data, &start, &stop))
        return NULL;
    int done = 0;
    if (stop - start > self->length - self->filled)
        PyErr_SetString(PyExc_ValueError, "more than the message has");
    else if (reserve(self, stop - start)) {
        put(self, (const char *)data.buf + start, stop - start);
        done = 1;
    }
    PyBuffer_Release(&data);
    return done ? Py_NewRef(Py_None) : NULL;
}

static Py_ssize_t length_of(const unsigned char *head)
{
    return (Py_ssize_t)head[0] << 16 | head[1] << 8 | head[2];
}

/* The length of a whole, filled DATA frame of this stream at `head`, without flags; 0: it is none. */
static Py_ssize_t middle(const unsigned char *head, const unsigned char *end, unsigned long stream_id, Py_ssize_t length_max)
{
    if (end - head < HEADER_BYTES)
        return 0;
    const Py_ssize_t length = length_of(head);
    const unsigned long owner = (unsigned long)(head[5] & 0x7F) << 24 | head[6] << 16 | head[7] << 8 | head[8];
    if (head[3] || head[4] || owner != stream_id || length > length_max || length > end - head - HEADER_BYTES)
        return 0;
    return length;
}

PyDoc_STRVAR(take_doc, "take(data, start, stop, stream_id, length_max) -> (where it stopped, frames taken).");

static PyObject *take(Assembly *self, PyObject *const *arguments, Py_ssize_t count)
{
    Py_buffer data;
    Py_ssize_t start, stop;
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "take takes 5 arguments");
        return NULL;
    }
    const unsigned long stream_id = PyLong_AsUnsignedLong(arguments[3]);
    const Py_ssize_t length_max = PyLong_AsSsize_t(arguments[4]);
    if (PyErr_Occurred() || !slice_of(arguments, &data, &start, &stop))
        return NULL;
    const unsigned char *const begin = (const unsigned char *)data.buf + start, *const end = begin + (stop - start);
    const Py_ssize_t left = self->length - self->filled;
    Py_ssize_t taken = 0, length;
    long frames = 0;
    const unsigned char *at = begin;
    while ((length = middle(at, end, stream_id, length_max)) && length < left - taken) {
        at += HEADER_BYTES + length;
        taken += length;
        frames++;
    }
    if (frames && !reserve(self, taken)) {
        PyBuffer_Release(&data);
        return NULL;
    }
    for (const unsigned char *from = begin; from < at; from += HEADER_BYTES + length) {
        length = length_of(from);
        put(self, (const char *)from + HEADER_BYTES, length);
    }
    start += at - begin;
    PyBuffer_Release(&data);
    return Py_BuildValue("(nl)", start, frames);
}

PyDoc_STRVAR(whole_doc, "whole() -> the message, when nothing of it is missing; once.");

static PyObject *whole(Assembly *self, PyObject *unused)
{
    if (self->filled != self->length || (self->bytes == NULL && self->length)) {
        PyErr_SetString(PyExc_ValueError, "the message is not whole");
        return NULL;
    }
    PyObject *message = self->bytes;
    self->bytes = NULL;
    return message != NULL ? message : PyBytes_FromStringAndSize(NULL, 0);
}

static PyObject *assembly_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    Py_ssize_t length;
    if (!PyArg_ParseTuple(arguments, "n", &length))
        return NULL;
    if (length < 0) {
        PyErr_SetString(PyExc_ValueError, "a message's length is not negative");
        return NULL;
    }
    Assembly *self = (Assembly *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->length = length;
    return (PyObject *)self;
}

static void assembly_dealloc(Assembly *self)
{
    Py_XDECREF(self->bytes);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef assembly_methods[] = {
    {"add", (PyCFunction)(void (*)(void))add, METH_FASTCALL, add_doc},
    {"take", (PyCFunction)(void (*)(void))take, METH_FASTCALL, take_doc},
    {"whole", (PyCFunction)(void (*)(void))whole, METH_NOARGS, whole_doc},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject assembly_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "picker.edge.grpc.h2._bulk.Assembly",
    .tp_doc = PyDoc_STR("Assembly(length): a message of so many bytes, put together from DATA as it comes."),
    .tp_basicsize = sizeof(Assembly),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = assembly_new,
    .tp_dealloc = (destructor)assembly_dealloc,
    .tp_methods = assembly_methods,
};

/* The header of a DATA frame without flags. */
static void put_header(char *to, unsigned long stream_id, Py_ssize_t size)
{
    const unsigned char header[HEADER_BYTES] = {
        size >> 16, size >> 8, size, 0, 0, stream_id >> 24, stream_id >> 16, stream_id >> 8, stream_id,
    };
    memcpy(to, header, HEADER_BYTES);
}

static int append(PyObject *list, PyObject *item)
{
    const int failed = item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return !failed;
}

/* A frame's header, and behind it what of `head` belongs to it. */
static PyObject *beginning(unsigned long stream_id, Py_ssize_t size, const char *head, Py_ssize_t of_head)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, HEADER_BYTES + of_head);
    if (bytes != NULL) {
        put_header(PyBytes_AS_STRING(bytes), stream_id, size);
        memcpy(PyBytes_AS_STRING(bytes) + HEADER_BYTES, head, of_head);
    }
    return bytes;
}

PyDoc_STRVAR(data_frame_doc, "data_frame(stream_id, message, body_bytes) -> a DATA frame with one gRPC message, less its last body_bytes.");

static PyObject *data_frame(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 3 || !PyBytes_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "data_frame takes a number, bytes and a number");
        return NULL;
    }
    const unsigned long stream_id = PyLong_AsUnsignedLong(arguments[0]);
    const Py_ssize_t body_size = PyLong_AsSsize_t(arguments[2]);
    if (PyErr_Occurred())
        return NULL;
    const Py_ssize_t here = PyBytes_GET_SIZE(arguments[1]);
    if (body_size < 0 || body_size > 0xFFFFFF || here > 0xFFFFFF - body_size - PREFIX_BYTES) {
        PyErr_SetString(PyExc_ValueError, "more than a frame holds");
        return NULL;
    }
    const Py_ssize_t length = here + body_size;
    const unsigned char prefix[PREFIX_BYTES] = {0, 0, length >> 16, length >> 8, length};
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, HEADER_BYTES + PREFIX_BYTES + here);
    if (bytes != NULL) {
        char *to = PyBytes_AS_STRING(bytes);
        put_header(to, stream_id, PREFIX_BYTES + length);
        memcpy(to + HEADER_BYTES, prefix, PREFIX_BYTES);
        memcpy(to + HEADER_BYTES + PREFIX_BYTES, PyBytes_AS_STRING(arguments[1]), here);
    }
    return bytes;
}

PyDoc_STRVAR(data_frames_doc, "data_frames(out, stream_id, length_max, head, body): append DATA frames with both, each as long as may be.");

static PyObject *data_frames(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 5 || !PyList_Check(arguments[0]) || !PyBytes_Check(arguments[3])) {
        PyErr_SetString(PyExc_TypeError, "data_frames takes a list, two numbers, bytes and a buffer");
        return NULL;
    }
    const unsigned long stream_id = PyLong_AsUnsignedLong(arguments[1]);
    const Py_ssize_t length_max = PyLong_AsSsize_t(arguments[2]);
    if (PyErr_Occurred())
        return NULL;
    if (length_max < 1 || length_max > 0xFFFFFF) {
        PyErr_SetString(PyExc_ValueError, "a frame has 1 to 16,777,215 bytes here");
        return NULL;
    }
    PyObject *view = PyMemoryView_FromObject(arguments[4]);
    if (view == NULL)
        return NULL;
    const Py_ssize_t body_size = PyMemoryView_GET_BUFFER(view)->len;
    const char *head = PyBytes_AS_STRING(arguments[3]);
    Py_ssize_t head_left = PyBytes_GET_SIZE(arguments[3]), at = 0;
    int done = 1;
    while (done && head_left + body_size - at > 0) {
        const Py_ssize_t left = head_left + body_size - at, size = left < length_max ? left : length_max;
        const Py_ssize_t of_head = size < head_left ? size : head_left, of_body = size - of_head;
        done = append(arguments[0], beginning(stream_id, size, head, of_head))
            && (!of_body || append(arguments[0], PySequence_GetSlice(view, at, at + of_body)));
        head += of_head;
        head_left -= of_head;
        at += of_body;
    }
    Py_DECREF(view);
    return done ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef methods[] = {
    {"data_frame", (PyCFunction)(void (*)(void))data_frame, METH_FASTCALL, data_frame_doc},
    {"data_frames", (PyCFunction)(void (*)(void))data_frames, METH_FASTCALL, data_frames_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "picker.edge.grpc.h2._bulk", "Large messages, copied once at most.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__bulk(void)
{
    if (PyType_Ready(&assembly_type) < 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddObjectRef(module, "Assembly", (PyObject *)&assembly_type) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
