/* Commands that repeat: a program's loop issues the same ones again and again, with other handles.
 *
 * What leaves is cut into segments: what was issued since the last wait, or the shortest period of a full queue. A
 * segment that came before, with the same values in the same order but for some, becomes a Template; from then on it
 * leaves as a Replay with what is different. Which values are handles nobody knows here: a number that moves along with
 * the handles given out meanwhile (`place.handle`) is taken for base + k, any other that differs is sent. Whatever does
 * not match byte for byte leaves as it is, so the worker always runs what was issued. */
#include "issue.h"

#include "execute_read.h"

#define TEMPLATES 16      /* as in rgpu.wire.limits */
#define HOLES 8192
#define DATA 60000        /* bytes of a segment that may become one */
#define SHORTEST 8        /* commands that are worth it */
#define UNIT 32           /* commands that a repeated period is put together to, at least */
#define LESSONS 12        /* times that a template may turn out to have more holes */

enum { CONSTANT, RELATIVE, GIVEN }; /* what a value of the template is */

typedef struct {
    uint64_t hash; /* of the segment's form; 0: free */
    unsigned char *data;
    unsigned char *kinds; /* of its scalars, in order */
    uint16_t *pieces;     /* bytes before each scalar that is not constant, and at the end */
    uint32_t *starts;     /* where they begin */
    int64_t *bases;
    unsigned char *given;
    size_t size, scalars, holes;
    uint64_t base, used; /* used: when it was last looked at */
    uint32_t count;
    int lessons;     /* times that it was seen again; the first one says nothing: loops begin with what is not yet theirs */
    char sent, dead, nothing; /* sent: the worker has this very one; nothing: no hole's value is sent with it */
} template;

struct replays {
    template kept[TEMPLATES];
    uint64_t clock;
};

static int out_head(output *o, unsigned char mark, uint64_t n, size_t size)
{
    unsigned char head[9] = {mark};
    for (size_t i = 0; i < size; i++)
        head[1 + i] = (unsigned char)(n >> (8 * (size - 1 - i)));
    return out_put(o, head, 1 + size);
}

/* ---- values -------------------------------------------------------------------------------- */

/* One step through msgpack: the head of what holds others, or a whole scalar. Whether it is a scalar; -1: no value. */
static int step(reader *r)
{
    if (r->at == r->end)
        return -1;
    unsigned char mark = *r->at;
    if ((mark >= 0x80 && mark < 0xa0)) {
        r->at++;
        return 0;
    }
    if (mark >= 0xdc && mark <= 0xdf) {
        size_t size = 1 + (size_t)(mark & 1 ? 4 : 2);
        if ((size_t)(r->end - r->at) < size)
            return -1;
        r->at += size;
        return 0;
    }
    return skip(r) ? 1 : -1;
}

static int natural_at(const unsigned char *at, const unsigned char *end, uint64_t *x)
{
    reader r = {at, end};
    return take_natural(&r, x);
}

/* What decides whether two commands are alike: everything but the values of their scalars, though small numbers at
 * the beginning (the tag, the function) count. */
static uint64_t hash_of(reader r)
{
    uint64_t hash = 0x2545f4914f6cdd1du;
    for (int i = 0; r.at < r.end; i++) {
        const unsigned char *at = r.at;
        int scalar = step(&r);
        uint64_t word = scalar > 0 ? 1 : 2;
        if (scalar < 0)
            return 0;
        if (!scalar || (i < 3 && *at < 0x80))
            for (const unsigned char *b = at; b < r.at; b++)
                word = word << 8 | *b;
        else if (*at >= 0xa0 && *at < 0xc0) /* words such as a dtype decide */
            for (const unsigned char *b = at; b < r.at && b < at + 7; b++)
                word = word << 8 | *b;
        else if (*at == 0xcb || *at == 0xc0 || *at == 0xc2 || *at == 0xc3)
            word = 256 + *at;
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash | 1;
}

/* ---- learning ------------------------------------------------------------------------------ */

static void forget(template *t)
{
    PyMem_Free(t->data);
    PyMem_Free(t->kinds);
    PyMem_Free(t->pieces);
    PyMem_Free(t->starts);
    PyMem_Free(t->bases);
    PyMem_Free(t->given);
    memset(t, 0, sizeof *t);
}

void replays_free(struct replays *all)
{
    for (int i = 0; all && i < TEMPLATES; i++)
        forget(&all->kept[i]);
    PyMem_Free(all);
}

struct replays *replays_new(void)
{
    return PyMem_Calloc(1, sizeof(struct replays));
}

/* The pieces between the scalars that are not constant. 0: there are too many. */
static int cut(template *t)
{
    reader r = {t->data, t->data + t->size};
    const unsigned char *from = r.at;
    size_t holes = 0;
    for (size_t i = 0; i < t->scalars; i++)
        holes += t->kinds[i] != CONSTANT;
    if (holes > HOLES)
        return 0;
    uint16_t *pieces = PyMem_Calloc(holes + 1, sizeof *pieces);
    int64_t *bases = PyMem_Calloc(holes + 1, sizeof *bases);
    uint32_t *starts = PyMem_Calloc(holes + 1, sizeof *starts);
    unsigned char *given = PyMem_Calloc(holes + 1, 1);
    if (!pieces || !bases || !starts || !given) {
        PyMem_Free(pieces);
        PyMem_Free(bases);
        PyMem_Free(starts);
        PyMem_Free(given);
        return 0;
    }
    PyMem_Free(t->pieces);
    PyMem_Free(t->bases);
    PyMem_Free(t->starts);
    PyMem_Free(t->given);
    t->pieces = pieces;
    t->starts = starts;
    t->bases = bases;
    t->given = given;
    t->holes = 0;
    t->nothing = 1;
    for (size_t i = 0; r.at < r.end;) {
        const unsigned char *at = r.at;
        if (step(&r) <= 0)
            continue;
        int kind = t->kinds[i++];
        if (kind == CONSTANT)
            continue;
        uint64_t x = 0;
        natural_at(at, r.end, &x);
        pieces[t->holes] = (uint16_t)(at - from);
        bases[t->holes] = (int64_t)(x - t->base);
        given[t->holes++] = kind == GIVEN;
        t->nothing &= kind != GIVEN;
        from = r.at;
        starts[t->holes] = (uint32_t)(from - t->data);
    }
    pieces[t->holes] = (uint16_t)(r.end - from);
    t->sent = 0;
    return 1;
}

/* What is different in another segment of the same form becomes a hole. 0: it is not of this form. */
static int learn(template *t, reader b, uint64_t base)
{
    reader a = {t->data, t->data + t->size};
    for (size_t i = 0; a.at < a.end;) {
        const unsigned char *x = a.at, *y = b.at;
        int scalar = step(&a);
        if (b.at == b.end || step(&b) != scalar)
            return 0;
        int same = a.at - x == b.at - y && !memcmp(x, y, (size_t)(a.at - x));
        if (!scalar) {
            if (!same)
                return 0;
            continue;
        }
        uint64_t n, m;
        int along = natural_at(x, a.end, &n) && natural_at(y, b.end, &m) && n - t->base == m - base;
        unsigned char *kind = &t->kinds[i++];
        if ((*kind == CONSTANT && !same) || (*kind == RELATIVE && !along))
            *kind = *kind == CONSTANT && along ? RELATIVE : GIVEN;
    }
    return b.at == b.end && cut(t);
}

static template *place_for(struct replays *all, uint64_t hash, size_t count)
{
    template *oldest = NULL;
    for (int i = 0; i < TEMPLATES; i++) {
        template *t = &all->kept[i];
        if (t->hash == hash && t->count == count)
            return t;
        if (!oldest || t->used < oldest->used)
            oldest = t;
    }
    forget(oldest);
    return oldest;
}

static void remember(struct replays *all, uint64_t hash, reader r, uint64_t base, size_t count)
{
    template *t = place_for(all, hash, count);
    t->used = ++all->clock;
    if (t->dead)
        return;
    if (t->hash && ++t->lessons > 1) {
        t->dead = t->lessons > LESSONS || !learn(t, r, base);
        return;
    }
    size_t scalars = 0, size = (size_t)(r.end - r.at);
    for (reader s = r; s.at < s.end;) {
        int scalar = step(&s);
        if (scalar < 0)
            return;
        scalars += (size_t)scalar;
    }
    PyMem_Free(t->data);
    PyMem_Free(t->kinds);
    t->data = PyMem_Malloc(size + 1);
    t->kinds = PyMem_Calloc(scalars + 1, 1);
    if (!t->data || !t->kinds) {
        forget(t);
        return;
    }
    memcpy(t->data, r.at, size);
    t->hash = hash;
    t->size = size;
    t->scalars = scalars;
    t->base = base;
    t->count = (uint32_t)count;
}

/* ---- repeating ----------------------------------------------------------------------------- */

/* memcmp would be called for a dozen bytes, some for each command. */
static int same(const unsigned char *a, const unsigned char *b, size_t size)
{
    uint64_t x, y;
    if (size < sizeof x || size > 64)
        return !memcmp(a, b, size);
    for (size_t at = 0; at + sizeof x < size; at += sizeof x) {
        memcpy(&x, a + at, sizeof x);
        memcpy(&y, b + at, sizeof y);
        if (x != y)
            return 0;
    }
    memcpy(&x, a + size - sizeof x, sizeof x);
    memcpy(&y, b + size - sizeof y, sizeof y);
    return x == y;
}

/* Whether the bytes begin with the template's commands; the reader stands behind them then. */
static int matches(const template *t, reader *r, uint64_t base)
{
    reader rest = *r;
    for (size_t i = 0; i <= t->holes; i++) {
        size_t piece = t->pieces[i];
        if ((size_t)(rest.end - rest.at) < piece || !same(rest.at, t->data + t->starts[i], piece))
            return 0;
        rest.at += piece;
        if (i == t->holes)
            break;
        uint64_t x;
        if (t->given[i] ? step(&rest) <= 0 : !take_natural(&rest, &x) || x != base + (uint64_t)t->bases[i])
            return 0;
    }
    *r = rest;
    return 1;
}

static int write_template(output *o, const template *t, unsigned number)
{
    if (out_head(o, 0x96, 16, 1) || out_head(o, 0xcc, number, 1) || out_head(o, 0xcd, t->count, 2))
        return -1;
    size_t size = 0;
    for (size_t i = 0; i <= t->holes; i++)
        size += t->pieces[i];
    if (out_head(o, 0xc6, size, 4))
        return -1;
    for (size_t i = 0; i <= t->holes; i++)
        if (out_put(o, t->data + t->starts[i], t->pieces[i]))
            return -1;
    if (out_head(o, 0xdd, t->holes + 1, 4))
        return -1;
    for (size_t i = 0; i <= t->holes; i++)
        if (out_head(o, 0xcd, t->pieces[i], 2))
            return -1;
    if (out_head(o, 0xdd, t->holes, 4))
        return -1;
    for (size_t i = 0; i < t->holes; i++)
        if (t->given[i] ? out_head(o, 0xc0, 0, 0) : out_head(o, 0xd3, (uint64_t)t->bases[i], 8))
            return -1;
    o->items++;
    return 0;
}

static int write_replay(output *o, const template *t, unsigned number, reader r, uint64_t base)
{
    uint64_t given = 0;
    for (size_t i = 0; i < t->holes && !t->nothing; i++)
        given += t->given[i];
    if (out_head(o, 0x94, 17, 1) || out_head(o, 0xcc, number, 1) || out_head(o, 0xcf, base, 8) ||
        out_head(o, 0xdd, given, 4))
        return -1;
    for (size_t i = 0; i < t->holes && !t->nothing; i++) {
        r.at += t->pieces[i];
        const unsigned char *value = r.at;
        skip(&r);
        if (t->given[i] && out_put(o, value, (size_t)(r.at - value)))
            return -1;
    }
    o->items++;
    return 0;
}

/* ---- segments ------------------------------------------------------------------------------ */

/* The bytes of some of the queue's commands. */
static reader commands(const Queue *q, size_t first, size_t end)
{
    size_t from = first ? q->places[first - 1].end : 0;
    return (reader){q->bytes + from, q->bytes + (end ? q->places[end - 1].end : 0)};
}

/* A template that the commands from `at` on begin with. */
static template *template_at(struct replays *all, const Queue *q, size_t at, size_t end)
{
    for (int i = 0; i < TEMPLATES; i++) {
        template *t = &all->kept[i];
        reader r = commands(q, at, end);
        if (t->lessons > 1 && !t->dead && t->count <= end - at && matches(t, &r, q->places[at].handle))
            return t;
    }
    return NULL;
}

static int copy_out(output *o, const Queue *q, size_t first, size_t end)
{
    reader r = commands(q, first, end);
    o->items += end - first;
    return out_put(o, r.at, (size_t)(r.end - r.at));
}

/* Commands from `first` on of which the last ones leave as Replays; how many, or -1. Those before them are the rest of
 * a repetition that was cut, because the program paused. */
static Py_ssize_t repeat(struct replays *all, Queue *q, output *o, size_t first, size_t end)
{
    size_t at = first;
    template *t = NULL;
    while (at < end && !(t = template_at(all, q, at, end)))
        at++;
    if (!t)
        return 0;
    if (copy_out(o, q, first, at))
        return -1;
    for (; t; t = template_at(all, q, at, end)) {
        unsigned number = (unsigned)(t - all->kept);
        uint64_t base = q->places[at].handle;
        if ((!t->sent && write_template(o, t, number)) || write_replay(o, t, number, commands(q, at, end), base))
            return -1;
        t->sent = 1;
        t->used = ++all->clock;
        q->replayed += t->count;
        at += t->count;
    }
    return (Py_ssize_t)(at - first);
}

/* How the commands end: with a unit of so many that comes again and again (0: they do not), from `first` on. */
static size_t unit_of(const uint64_t *hashes, size_t count, size_t *first)
{
    size_t *border = PyMem_Calloc(count + 1, sizeof *border), period = 0, length = count;
    if (!border)
        return 0;
    const uint64_t *last = hashes + count - 1; /* Knuth, Morris, Pratt on the reverse: the longest border of each end */
    for (size_t i = 1, k = 0; i < count; i++) {
        while (k && last[-(ptrdiff_t)i] != last[-(ptrdiff_t)k])
            k = border[k - 1];
        k += last[-(ptrdiff_t)i] == last[-(ptrdiff_t)k];
        border[i] = k;
    }
    for (; length > SHORTEST; length--) {
        period = length - border[length - 1];
        if (period * 3 <= length)
            break;
    }
    PyMem_Free(border);
    if (length <= SHORTEST)
        return 0;
    size_t times = (UNIT + period - 1) / period;
    while (times > 1 && times * period * 3 > length)
        times--;
    *first = count - length;
    return times * period;
}

static uint64_t hash_together(const uint64_t *hashes, size_t count)
{
    uint64_t hash = 1;
    for (size_t i = 0; i < count; i++) {
        hash = (hash ^ hashes[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash | 1;
}

/* Commands that match no template leave as they are, and what they were is remembered: all of them, or where they
 * end with repetitions the first three of those, from which the others are known. How many; -1 with an exception. */
static Py_ssize_t pass(struct replays *all, Queue *q, output *o, size_t first, size_t end)
{
    size_t count = end - first, before = 0, kept = count;
    uint64_t *hashes = count < SHORTEST ? NULL : PyMem_Malloc(count * sizeof *hashes);
    if (hashes) {
        for (size_t i = 0; i < count; i++)
            hashes[i] = hash_of(commands(q, first + i, first + i + 1));
        size_t unit = unit_of(hashes, count, &before), segment = unit ? unit : count;
        if (segment < SHORTEST)
            before = segment = count; /* so little is not worth it: nothing is remembered */
        size_t until = before == count ? count : before + (unit ? 3 * unit : count);
        for (kept = before; kept < until; kept += segment) {
            reader r = commands(q, first + kept, first + kept + segment);
            if (r.end - r.at <= DATA)
                remember(all, hash_together(hashes + kept, segment), r, q->places[first + kept].handle, segment);
        }
        PyMem_Free(hashes);
    }
    return copy_out(o, q, first, first + kept) ? -1 : (Py_ssize_t)kept;
}

/* Whether a command is one that the client waits for. */
static int waits(const Queue *q, size_t i)
{
    reader r = commands(q, i, i + 1);
    uint64_t fields, tag;
    return take_list(&r, &fields) && take_natural(&r, &tag) && (tag == 9 || tag == 12 || tag == 13);
}

/* Write the first `count` commands, or of a queue that need not be emptied some of them; how many, or -1. */
Py_ssize_t replays_write(struct replays *all, Queue *q, size_t count, int whole)
{
    size_t at = 0, end = count;
    if (whole)
        while (end && waits(q, end - 1)) /* they come last: whoever queues them flushes */
            end--;
    while (at < end) {
        Py_ssize_t done = repeat(all, q, &q->out, at, end);
        if (!done && (whole || !at))
            done = pass(all, q, &q->out, at, end);
        if (done < 0)
            return -1;
        if (!done)
            break; /* the rest of a full queue may be the beginning of the next unit */
        at += (size_t)done;
    }
    if (at == end && end < count) {
        if (copy_out(&q->out, q, end, count))
            return -1;
        at = count;
    }
    return (Py_ssize_t)at;
}
