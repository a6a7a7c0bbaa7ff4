/* The three objectives for every slot in one pass: what fused.py says in numpy, for the compiled build.

   With x = u / R and everything a double (the letters are those of the scorers' docstrings):

       f_r * ( x + x d_r a min(1, x / T)
               + w_q * ((Q_r + foreign_r * mean uncached) / R + overflow)
               + w_k * E * (s * (d_r + 1) + c * (K_r + p)) )

   Rows of the table as in loads.py. Tests hold the result against the scorers' sum. */

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_1_20_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>

enum { REQUESTS, CONTEXT_TOKENS, BACKLOG_TOKENS, FOREIGN, ONES, OVER_TOKENS, SLOWNESS, ROWS };

enum {
    RATE,             /* R, tokens a second */
    DISTURBANCE,      /* a */
    RAMP,             /* T, seconds */
    QUEUE,            /* w_q over the prefix's weight */
    KV,               /* w_k, the same */
    UNCACHED,         /* mean uncached tokens of a request */
    OUTPUT,           /* E of this request */
    MEAN_OUTPUT,      /* E of the model's requests */
    SEQUENCE,         /* s */
    TOKEN,            /* c */
    STEP,             /* t0 */
    OVERFLOW_WAIT,    /* g */
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
    const double over = requests * (number[MEAN_OUTPUT] / 2.0) + table[OVER_TOKENS * width + slot] + new_tokens;
    if (over > 0.0)
        wait += over * number[MEAN_OUTPUT] * number[OVERFLOW_WAIT] * (step + number[STEP]) / capacity[slot];
    return (prefix + number[QUEUE] * wait + number[KV] * number[OUTPUT] * step) * table[SLOWNESS * width + slot];
}

PyDoc_STRVAR(weigh_doc,
"weigh(table, capacity_tokens, numbers, holdings) -> seconds, weighted, by slot: a new array.\n\n"
"numbers: floats in the order of the enum in kernel.c. holdings: (slots as little-endian bits, unmatched, new tokens).");

static PyObject *weigh(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    double number[NUMBERS];
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "weigh takes 4 arguments");
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
    if (!PyTuple_Check(arguments[2]) || PyTuple_GET_SIZE(arguments[2]) != NUMBERS || !PyList_Check(arguments[3])) {
        PyErr_Format(PyExc_TypeError, "numbers must be a tuple of %d, holdings a list", NUMBERS);
        return NULL;
    }
    for (int at = 0; at < NUMBERS; at++) {
        number[at] = PyFloat_AsDouble(PyTuple_GET_ITEM(arguments[2], at));
        if (number[at] == -1.0 && PyErr_Occurred())
            return NULL;
    }
    PyObject *result = PyArray_SimpleNew(1, &width, NPY_DOUBLE);
    if (result == NULL)
        return NULL;
    double *cost = PyArray_DATA((PyArrayObject *)result);
    const double *table = PyArray_DATA(rows), *capacity = PyArray_DATA(capacities);
    for (npy_intp slot = 0; slot < width; slot++)
        cost[slot] = cost_of(table, width, capacity, slot, number, number[UNMATCHED], number[NEW]);
    for (Py_ssize_t each = 0; each < PyList_GET_SIZE(arguments[3]); each++) {
        const unsigned char *bits;
        Py_ssize_t size;
        double unmatched, new_tokens;
        PyObject *holding = PyList_GET_ITEM(arguments[3], each);
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

/* `(cost, tie seconds, tie ratio)`: the least of them, and up to what the others count as equal to it. -1: an error. */
static npy_intp least_of(PyObject *const *arguments, double *limit)
{
    if (!doubles(arguments[0], 1, "cost"))
        return -1;
    const double *cost = PyArray_DATA((PyArrayObject *)arguments[0]);
    const npy_intp width = PyArray_DIM((PyArrayObject *)arguments[0], 0);
    const double seconds = PyFloat_AsDouble(arguments[1]), ratio = PyFloat_AsDouble(arguments[2]);
    if (PyErr_Occurred())
        return -1;
    if (width == 0) {
        PyErr_SetString(PyExc_ValueError, "no slot to choose from");
        return -1;
    }
    npy_intp least = 0;
    for (npy_intp slot = 1; slot < width; slot++)
        if (cost[slot] < cost[least])
            least = slot;
    *limit = cost[least] < seconds / ratio ? cost[least] + seconds : cost[least] * (1.0 + ratio);
    return least;
}

PyDoc_STRVAR(lowest_doc,
"lowest(cost, tie_seconds, tie_ratio) -> (slot of the least, how many are within the greater of both of it).");

static PyObject *lowest(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    double limit;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "lowest takes 3 arguments");
        return NULL;
    }
    const npy_intp least = least_of(arguments, &limit);
    if (least < 0)
        return NULL;
    const double *cost = PyArray_DATA((PyArrayObject *)arguments[0]);
    const npy_intp width = PyArray_DIM((PyArrayObject *)arguments[0], 0);
    Py_ssize_t tied = 0;
    for (npy_intp slot = 0; slot < width; slot++)
        tied += cost[slot] <= limit;
    return Py_BuildValue("nn", (Py_ssize_t)least, tied);
}

PyDoc_STRVAR(tied_doc, "tied(cost, tie_seconds, tie_ratio, number) -> the slot of that number among those lowest() counts.");

static PyObject *tied(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    double limit;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "tied takes 4 arguments");
        return NULL;
    }
    if (least_of(arguments, &limit) < 0)
        return NULL;
    Py_ssize_t number = PyLong_AsSsize_t(arguments[3]);
    if (number < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a number below 0");
        return NULL;
    }
    const double *cost = PyArray_DATA((PyArrayObject *)arguments[0]);
    const npy_intp width = PyArray_DIM((PyArrayObject *)arguments[0], 0);
    for (npy_intp slot = 0; slot < width; slot++)
        if (cost[slot] <= limit && number-- == 0)
            return PyLong_FromSsize_t(slot);
    PyErr_SetString(PyExc_IndexError, "fewer slots are tied");
    return NULL;
}

static PyMethodDef methods[] = {
    {"weigh", (PyCFunction)(void (*)(void))weigh, METH_FASTCALL, weigh_doc},
    {"lowest", (PyCFunction)(void (*)(void))lowest, METH_FASTCALL, lowest_doc},
    {"tied", (PyCFunction)(void (*)(void))tied, METH_FASTCALL, tied_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "picker.scheduling.kernel", "The scorers' sum for every slot in one pass.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_kernel(void)
{
    import_array();
    return PyModule_Create(&definition);
}
