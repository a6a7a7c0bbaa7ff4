/* Columns and tables of loads, slot by slot: what fused.py and loads.py say in numpy, for the compiled build.

   The three objectives for every slot in one pass:

   With x = u / R and everything a double (the letters are those of the scorers' docstrings):

       f_r * ( x + x d_r a min(1, x / T)
               + w_q * ((Q_r + foreign_r * mean uncached) / R + overflow)
               + w_k * E * (s * (d_r + 1) + c * (K_r + p)) )

   Rows of the table as in loads.py. Tests hold the result against the scorers' sum. */

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_1_20_API_VERSION
#include <Python.h>
#include <math.h>
#include <numpy/arrayobject.h>
#include <string.h>

enum { REQUESTS, CONTEXT_TOKENS, BACKLOG_TOKENS, FOREIGN, ONES, OVER_TOKENS, SLOWNESS, ROWS };

enum {
    RATE,             /* R, tokens a second */
    DISTURBANCE,      /* a */
    RAMP,             /* T, seconds */
    QUEUE,            /* w_q over the prefix's weight */
    KV,               /* w_k, the same */
    SEQUENCE,         /* s */
    TOKEN,            /* c */
    STEP,             /* t0 */
    OVERFLOW_WAIT,    /* g */
    CONFIGURED,       /* so many are the configuration's, the rest a request's */
    UNCACHED = CONFIGURED, /* mean uncached tokens of a request */
    OUTPUT,           /* E of this request */
    MEAN_OUTPUT,      /* E of the model's requests */
    PROMPT,           /* p */
    UNMATCHED,        /* u where nothing is held */
    NEW,              /* n where nothing is held */
    NUMBERS
};

static int doubles(PyObject *object, int dimensions, const char *what)
{
    if (PyArray_Check(object)) {
        PyArrayObject *array = (PyArrayObject *)object;
        if (PyArray_NDIM(array) == dimensions && PyArray_TYPE(array) == NPY_DOUBLE && PyArray_ISCARRAY_RO(array))
            return 1;
    }
    PyErr_Format(PyExc_TypeError, "%s must be a C-contiguous float64 array of %d dimensions", what, dimensions);
    return 0;
}

static double cost_of(const double *table, npy_intp width, const double *capacity, npy_intp slot, const double *number,
                      double unmatched, double new_tokens)
{
    const double requests = table[REQUESTS * width + slot];
    const double alone = unmatched / number[RATE];
    const double beside = number[DISTURBANCE] * (alone < number[RAMP] ? alone / number[RAMP] : 1.0);
    const double prefix = alone + alone * beside * requests;
    const double step = number[SEQUENCE] * (requests + 1.0)
        + number[TOKEN] * (table[CONTEXT_TOKENS * width + slot] + number[PROMPT]);
    const double backlog = table[BACKLOG_TOKENS * width + slot] + table[FOREIGN * width + slot] * number[UNCACHED];
    double wait = backlog / number[RATE];
    const double over_now = table[OVER_TOKENS * width + slot] + new_tokens;
    double over = requests * (number[MEAN_OUTPUT] / 2.0) + over_now;
    if (over_now > 0.0)
        over += capacity[slot] / (requests + 1.0);
    if (over > 0.0)
        wait += over * number[MEAN_OUTPUT] * number[OVERFLOW_WAIT] * (step + number[STEP]) / capacity[slot];
    return (prefix + number[QUEUE] * wait + number[KV] * number[OUTPUT] * step) * table[SLOWNESS * width + slot];
}

/* The same of every slot, where all have room, without a branch: so that several are worked out at a time. Returns how
   many have none, whose wait is not in it. The order of the operations is that of cost_of, so the results are. */
static npy_intp costs_with_room(double *restrict cost, const double *restrict table, npy_intp width, const double *number,
                                double unmatched, double new_tokens)
{
    const double rate = number[RATE], alone = unmatched / rate, mean_output = number[MEAN_OUTPUT] / 2.0;
    const double beside = number[DISTURBANCE] * (alone < number[RAMP] ? alone / number[RAMP] : 1.0);
    const double disturbed = alone * beside, sequence = number[SEQUENCE], token = number[TOKEN];
    const double prompt = number[PROMPT], uncached = number[UNCACHED], queue = number[QUEUE];
    const double decoding = number[KV] * number[OUTPUT];
    const double *requests = table + REQUESTS * width, *context = table + CONTEXT_TOKENS * width;
    const double *backlog = table + BACKLOG_TOKENS * width, *foreign = table + FOREIGN * width;
    const double *over = table + OVER_TOKENS * width, *slowness = table + SLOWNESS * width;
    npy_intp full = 0;
    for (npy_intp slot = 0; slot < width; slot++) {
        const double step = sequence * (requests[slot] + 1.0) + token * (context[slot] + prompt);
        const double wait = (backlog[slot] + foreign[slot] * uncached) / rate;
        full += requests[slot] * mean_output + (over[slot] + new_tokens) > 0.0;
        cost[slot] = (alone + disturbed * requests[slot] + queue * wait + decoding * step) * slowness[slot];
    }
    return full;
}

PyDoc_STRVAR(weigh_doc,
"weigh(table, capacity_tokens, configured, numbers, holdings) -> seconds, weighted, by slot: a new array.\n\n"
"configured, numbers: floats in the order of the enum in _fused.c.\n"
"holdings: (slots as little-endian bits, unmatched, new tokens).");

static int numbers_of(PyObject *tuple, Py_ssize_t count, double *number)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count) {
        PyErr_Format(PyExc_TypeError, "a tuple of %zd numbers is wanted", count);
        return 0;
    }
    for (Py_ssize_t at = 0; at < count; at++) {
        number[at] = PyFloat_AsDouble(PyTuple_GET_ITEM(tuple, at));
        if (number[at] == -1.0 && PyErr_Occurred())
            return 0;
    }
    return 1;
}

static PyObject *weigh(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    double number[NUMBERS];
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "weigh takes 5 arguments");
        return NULL;
    }
    if (!doubles(arguments[0], 2, "table") || !doubles(arguments[1], 1, "capacity_tokens"))
        return NULL;
    PyArrayObject *rows = (PyArrayObject *)arguments[0], *capacities = (PyArrayObject *)arguments[1];
    npy_intp width = PyArray_DIM(rows, 1);
    if (PyArray_DIM(rows, 0) != ROWS || PyArray_DIM(capacities, 0) != width) {
        PyErr_SetString(PyExc_ValueError, "the table has other rows, or another width than the capacities");
        return NULL;
    }
    if (!numbers_of(arguments[2], CONFIGURED, number)
        || !numbers_of(arguments[3], NUMBERS - CONFIGURED, number + CONFIGURED))
        return NULL;
    if (!PyList_Check(arguments[4])) {
        PyErr_SetString(PyExc_TypeError, "holdings must be a list");
        return NULL;
    }
    PyObject *result = PyArray_SimpleNew(1, &width, NPY_DOUBLE);
    if (result == NULL)
        return NULL;
    double *cost = PyArray_DATA((PyArrayObject *)result);
    const double *table = PyArray_DATA(rows), *capacity = PyArray_DATA(capacities);
    if (costs_with_room(cost, table, width, number, number[UNMATCHED], number[NEW]))
        for (npy_intp slot = 0; slot < width; slot++)
            cost[slot] = cost_of(table, width, capacity, slot, number, number[UNMATCHED], number[NEW]);
    for (Py_ssize_t each = 0; each < PyList_GET_SIZE(arguments[4]); each++) {
        const unsigned char *bits;
        Py_ssize_t size;
        double unmatched, new_tokens;
        PyObject *holding = PyList_GET_ITEM(arguments[4], each);
        if (!PyTuple_Check(holding)) {
            PyErr_SetString(PyExc_TypeError, "a holding must be a tuple");
            Py_DECREF(result);
            return NULL;
        }
        if (!PyArg_ParseTuple(holding, "y#dd", &bits, &size, &unmatched, &new_tokens)) {
            Py_DECREF(result);
            return NULL;
        }
        for (Py_ssize_t byte = 0; byte < size; byte++)
            for (int bit = 0; bits[byte] >> bit; bit++) {
                npy_intp slot = byte * 8 + bit;
                if (bits[byte] >> bit & 1 && slot < width)
                    cost[slot] = cost_of(table, width, capacity, slot, number, unmatched, new_tokens);
            }
    }
    return result;
}

static int among(const unsigned char *bits, npy_intp bytes, npy_intp slot)
{
    return slot / 8 < bytes && bits[slot / 8] >> (slot % 8) & 1;
}

/* The least of a column, four lanes at a time. */
static double least_of(const double *cost, npy_intp width)
{
    enum { LANES = 4 };
    double least[LANES] = {INFINITY, INFINITY, INFINITY, INFINITY};
    npy_intp slot = 0;
    for (; slot + LANES <= width; slot += LANES)
        for (int lane = 0; lane < LANES; lane++)
            least[lane] = cost[slot + lane] < least[lane] ? cost[slot + lane] : least[lane];
    for (; slot < width; slot++)
        least[0] = cost[slot] < least[0] ? cost[slot] : least[0];
    for (int lane = 1; lane < LANES; lane++)
        least[0] = least[lane] < least[0] ? least[lane] : least[0];
    return least[0];
}

PyDoc_STRVAR(least_doc,
"least(cost, tie_seconds, tie_ratio, slots, random) -> a slot of those whose cost is within the greater of both of the\n"
"least. slots: little-endian bits; None: all. random: asked for a number from 0 to below 1 where there are several.");

static PyObject *least(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "least takes 5 arguments");
        return NULL;
    }
    if (!doubles(arguments[0], 1, "cost"))
        return NULL;
    const double *cost = PyArray_DATA((PyArrayObject *)arguments[0]);
    const npy_intp width = PyArray_DIM((PyArrayObject *)arguments[0], 0);
    const double seconds = PyFloat_AsDouble(arguments[1]), ratio = PyFloat_AsDouble(arguments[2]);
    if (PyErr_Occurred())
        return NULL;
    const unsigned char *bits = NULL;
    npy_intp bytes = (width + 7) / 8;
    if (PyBytes_Check(arguments[3])) {
        bits = (const unsigned char *)PyBytes_AS_STRING(arguments[3]);
        bytes = PyBytes_GET_SIZE(arguments[3]) < bytes ? PyBytes_GET_SIZE(arguments[3]) : bytes;
    } else if (arguments[3] != Py_None) {
        PyErr_SetString(PyExc_TypeError, "slots must be little-endian bits, or None for all");
        return NULL;
    }
    double lowest = INFINITY;
    npy_intp asked = bits == NULL ? width : 0, tied = 0;
    if (bits == NULL)
        lowest = least_of(cost, width);
    else
        for (npy_intp byte = 0; byte < bytes; byte++)
            for (int bit = 0; bits[byte] >> bit; bit++) {
                const npy_intp slot = byte * 8 + bit;
                if (bits[byte] >> bit & 1 && slot < width) {
                    lowest = cost[slot] < lowest ? cost[slot] : lowest;
                    asked++;
                }
            }
    if (asked == 0) {
        PyErr_SetString(PyExc_ValueError, "no slot to choose from");
        return NULL;
    }
    const double limit = lowest < seconds / ratio ? lowest + seconds : lowest * (1.0 + ratio);
    if (bits == NULL)
        for (npy_intp slot = 0; slot < width; slot++)
            tied += cost[slot] <= limit;
    else
        for (npy_intp slot = 0; slot < width; slot++)
            tied += among(bits, bytes, slot) && cost[slot] <= limit;
    npy_intp number = 0;
    if (tied > 1) {
        PyObject *drawn = PyObject_CallNoArgs(arguments[4]);
        if (drawn == NULL)
            return NULL;
        number = (npy_intp)(PyFloat_AsDouble(drawn) * (double)tied);
        Py_DECREF(drawn);
        if (PyErr_Occurred())
            return NULL;
    }
    for (npy_intp slot = 0; slot < width; slot++)
        if ((bits == NULL || among(bits, bytes, slot)) && cost[slot] <= limit && number-- == 0)
            return PyLong_FromSsize_t(slot);
    PyErr_SetString(PyExc_ValueError, "a cost that is no number, or a draw outside of 0 to 1");
    return NULL;
}

/* A slot's place in a column; NULL: an error. */
static double *place(PyObject *column, npy_intp slot, const char *what)
{
    if (!doubles(column, 1, what))
        return NULL;
    if (slot < 0 || slot >= PyArray_DIM((PyArrayObject *)column, 0)) {
        PyErr_Format(PyExc_IndexError, "%s has no such slot", what);
        return NULL;
    }
    return (double *)PyArray_DATA((PyArrayObject *)column) + slot;
}

PyDoc_STRVAR(value_doc, "value(column, slot) -> its number.");

static PyObject *value(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "value takes 2 arguments");
        return NULL;
    }
    const npy_intp slot = PyLong_AsSsize_t(arguments[1]);
    if (slot == -1 && PyErr_Occurred())
        return NULL;
    const double *at = place(arguments[0], slot, "column");
    return at == NULL ? NULL : PyFloat_FromDouble(*at);
}

PyDoc_STRVAR(renew_doc,
"renew(table, slot, reported_tokens, capacity_tokens, slowness, requests, context, memory, backlog) -> tokens over.\n\n"
"Writes what changed of a slot: three columns, and the slot's own four numbers (loads.py).");

static PyObject *renew(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    double own[4];
    if (count != 9) {
        PyErr_SetString(PyExc_TypeError, "renew takes 9 arguments");
        return NULL;
    }
    if (!doubles(arguments[0], 2, "table"))
        return NULL;
    PyArrayObject *rows = (PyArrayObject *)arguments[0];
    const npy_intp width = PyArray_DIM(rows, 1), slot = PyLong_AsSsize_t(arguments[1]);
    if (slot == -1 && PyErr_Occurred())
        return NULL;
    if (PyArray_DIM(rows, 0) != ROWS || !PyArray_ISWRITEABLE(rows) || slot < 0 || slot >= width) {
        PyErr_SetString(PyExc_ValueError, "the table has other rows, no such slot, or is read-only");
        return NULL;
    }
    const double *reported = place(arguments[2], slot, "reported_tokens");
    const double *capacity = reported ? place(arguments[3], slot, "capacity_tokens") : NULL;
    const double *slowness = capacity ? place(arguments[4], slot, "slowness") : NULL;
    if (slowness == NULL)
        return NULL;
    for (int at = 0; at < 4; at++) {
        own[at] = PyFloat_AsDouble(arguments[5 + at]);
        if (own[at] == -1.0 && PyErr_Occurred())
            return NULL;
    }
    double *table = PyArray_DATA(rows);
    const double over = (own[2] > *reported ? own[2] : *reported) - *capacity;
    table[REQUESTS * width + slot] = own[0];
    table[CONTEXT_TOKENS * width + slot] = own[1] > *reported ? own[1] : *reported;
    table[BACKLOG_TOKENS * width + slot] = own[3];
    table[OVER_TOKENS * width + slot] = over;
    table[SLOWNESS * width + slot] = *slowness;
    return PyFloat_FromDouble(over);
}

PyDoc_STRVAR(copied_doc, "copied(table) -> a new array: what its copy() does, without numpy's preparations.");

static PyObject *copied(PyObject *module, PyObject *table)
{
    if (!doubles(table, 2, "table"))
        return NULL;
    PyArrayObject *rows = (PyArrayObject *)table;
    PyObject *result = PyArray_SimpleNew(2, PyArray_DIMS(rows), NPY_DOUBLE);
    if (result != NULL)
        memcpy(PyArray_DATA((PyArrayObject *)result), PyArray_DATA(rows), (size_t)PyArray_NBYTES(rows));
    return result;
}

static PyMethodDef methods[] = {
    {"weigh", (PyCFunction)(void (*)(void))weigh, METH_FASTCALL, weigh_doc},
    {"least", (PyCFunction)(void (*)(void))least, METH_FASTCALL, least_doc},
    {"value", (PyCFunction)(void (*)(void))value, METH_FASTCALL, value_doc},
    {"renew", (PyCFunction)(void (*)(void))renew, METH_FASTCALL, renew_doc},
    {"copied", copied, METH_O, copied_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "picker.scheduling._fused", "Columns and tables of loads, slot by slot.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__fused(void)
{
    import_array();
    return PyModule_Create(&definition);
}
