/* What of a call decides its result, see issue_sign.c. */
#ifndef RGPU_ISSUE_SIGN_H
#define RGPU_ISSUE_SIGN_H
#include "issue.h"

#define WORDS 48 /* of a signature; longer ones are not remembered */
#define ARRAYS 8
#define NUMBERS 4
/* What a call's bytes need. */
typedef struct {
    Remote *arrays[ARRAYS];
    PyObject *numbers[NUMBERS];
    int narrays, nnumbers;
    Queue *queue;
} operands;

/* What of a call decides its result: words, which compare as a whole. */
typedef struct {
    uint64_t words[WORDS];
    PyObject *kept[WORDS]; /* whose addresses are among the words */
    int nwords, nkept;
    operands with;
} signature;

/* An address among the words: its object must live as long as they are compared. The low bits tell the kinds. */
#define IS_META 1
#define IS_OBJECT 2
#define IS_INT 3
#define IS_TUPLE 4
#define IS_SLICE 5
#define IS_SAME 6
#define IS_NUMBER 7

/* -1: not all of what decides the call can be told. */
int sign_call(signature *s, const Quick *quick, PyObject *const *args, Py_ssize_t nargs, PyObject *names);

#endif
