/* Whether to look for a moment before sleeping: rgpu/session/spin.py says why and how, this is its twin. */
#include "link.h"

#include <math.h>

#define LONGEST 1e-3
#define WEIGHT (1.0 / 8)
#define RARE 2
enum { SOON = 4, RARELY = 128 };

typedef struct {
    PyObject_HEAD
    double usual, most, average[2]; /* usual: its SHORT; most: seconds that longer waits count as */
    int looking, better, every, left, many;
} Spin;

static PyTypeObject *spin_type;

int link_is_spin(PyObject *x) { return PyObject_TypeCheck(x, spin_type); }

double link_seconds(PyObject *spin)
{
    Spin *s = (Spin *)spin;
    double without = s->average[0], looking = s->average[1];
    int better = looking <= without;
    s->left--;
    if (better != s->better) {
        s->better = better;
        s->every = s->left = SOON;
    } else if (!s->left) {
        s->every = s->left = 2 * s->every < RARELY ? 2 * s->every : RARELY;
        better = !better;
    }
    s->looking = better;
    return better && s->many && (looking < s->usual || without < s->usual) ? LONGEST : 0;
}

double link_near(PyObject *spin)
{
    const Spin *s = (Spin *)spin;
    double least = INFINITY;
    for (int i = 0; i < 2; i++)
        if (s->average[i] && s->average[i] < least)
            least = s->average[i];
    return s->many && (isinf(least) || least < s->usual) ? LONGEST : 0;
}

void link_learn(PyObject *spin, double waited)
{
    Spin *s = (Spin *)spin;
    double before = s->average[s->looking];
    waited = waited < s->most ? waited : s->most;
    double counted = waited < RARE * before ? waited : RARE * before;
    s->average[s->looking] = before ? before + (counted - before) * WEIGHT : waited;
    if (s->looking != s->better && waited < s->average[!s->looking])
        s->every = s->left = SOON;
}

static PyObject *spin_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named))
{
    double usual;
    int many;
    if (!PyArg_ParseTuple(args, "dp:Spin", &usual, &many))
        return NULL;
    Spin *s = (Spin *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!s)
        return NULL;
    s->usual = usual;
    s->most = 1.25 * usual;
    s->looking = s->better = 1;
    s->every = s->left = SOON;
    s->many = many;
    return (PyObject *)s;
}

static PyObject *spin_seconds(PyObject *s, PyObject *Py_UNUSED(none)) { return PyFloat_FromDouble(link_seconds(s)); }

static PyObject *spin_near(PyObject *s, PyObject *Py_UNUSED(none)) { return PyFloat_FromDouble(link_near(s)); }

static PyObject *spin_learn(PyObject *s, PyObject *waited)
{
    double seconds = PyFloat_AsDouble(waited);
    if (seconds == -1 && PyErr_Occurred())
        return NULL;
    link_learn(s, seconds);
    Py_RETURN_NONE;
}

static void spin_dealloc(PyObject *s)
{
    PyTypeObject *type = TYPE(s);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(s);
    Py_DECREF(type);
}

static PyMethodDef spin_methods[] = {
    {"seconds", spin_seconds, METH_NOARGS, "Seconds to look, before a wait."},
    {"near", spin_near, METH_NOARGS, "Seconds to look for what takes longer than others do."},
    {"learn", spin_learn, METH_O, "(seconds waited), after it."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot spin_slots[] = {{Py_tp_new, spin_new}, {Py_tp_dealloc, spin_dealloc}, {Py_tp_methods, spin_methods}, {0, NULL}};
static PyType_Spec spin_spec = {"rgpu._rgpu_link.Spin", sizeof(Spin), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, spin_slots};

int link_add_spin(PyObject *module)
{
    spin_type = (PyTypeObject *)PyType_FromSpec(&spin_spec);
    return spin_type ? PyModule_AddObject(module, "Spin", (PyObject *)spin_type) : -1;
}
