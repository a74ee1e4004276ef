/* Graphs of the stand-in driver: a launch carries the nodes out at once, in the order in which they were added. */
typedef struct { handle function; unsigned grid[3], block[3], shared; void **params, **extra; handle kernel, context; } kernel_node;
typedef struct { uint64_t to; size_t pitch; unsigned value, element; size_t width, height; } memset_node;
typedef struct { void (*run)(void *); void *data; } host_node;
typedef struct { unsigned node_kind; int zero[3]; uint64_t handle; unsigned kind, size; handle *bodies; handle context; char rest[200]; long long end; } conditional_node;
typedef struct { unsigned result; handle node, from; } update_result;

/* Kinds as CUgraphNodeType counts them. */
enum { KERNEL, MEMCPY, MEMSET, HOST, EMPTY = 5, WAIT, RECORD, CONDITIONAL = 13 };
typedef struct node {
    int kind, after[16], count, cooperative, place;
    kernel_node kernel; unsigned long long first; unsigned second;
    box copy; memset_node fill; host_node host; handle event; conditional_node conditional;
    struct graph *graph; struct node *next;
} node;
typedef struct graph { node *nodes; int count; } graph;

int fake_graphs, fake_execs, fake_graph_launches, fake_uploads, fake_updates, fake_update_fails, fake_flags;
/* The first value of conditional nodes. */
unsigned fake_condition;
/* A kind of node that cannot be added. */
int fake_refused_kind = -1;

int cuGraphCreate(handle *out, unsigned flags) { *out = calloc(1, sizeof(graph)); fake_graphs++; return flags; }
static void free_nodes(graph *g)
{
    for (node *n = g->nodes, *next; n; n = next) {
        next = n->next;
        for (unsigned i = 0; n->kind == CONDITIONAL && i < n->conditional.size; i++) {
            free_nodes(n->conditional.bodies[i]);
            free(n->conditional.bodies[i]);
        }
        free(n);
    }
}
int cuGraphDestroy(handle g) { free_nodes(g); free(g); fake_graphs--; return 0; }
int cuGraphDestroyNode(handle which)
{
    node *n = which, **at = &n->graph->nodes;
    while (*at != n)
        at = &(*at)->next;
    *at = n->next;
    n->next = 0;
    if (!n->graph->nodes)
        n->graph->count = 0;
    graph alone = { n, 1 };
    free_nodes(&alone);
    return 0;
}
static node *add(handle *out, graph *g, const handle *after, size_t count, int kind)
{
    if (!fake_current || kind == fake_refused_kind || count > 16 || (count > 0) != (after != 0))
        return 0;
    node *made = calloc(1, sizeof *made), **end = &g->nodes;
    made->kind = kind;
    made->graph = g;
    made->place = g->count++;
    made->count = (int)count;
    for (size_t i = 0; i < count; i++) {
        made->after[i] = ((node *)after[i])->place;
        for (size_t j = 0; j < i; j++)
            if (after[i] == after[j])
                return 0;
    }
    while (*end)
        end = &(*end)->next;
    *end = made;
    *out = made;
    return made;
}
#define ADD(kind) node *n = add(out, g, after, count, kind); if (!n) return 1
int cuGraphAddKernelNode_v2(handle *out, handle g, const handle *after, size_t count, const kernel_node *p)
{
    ADD(KERNEL);
    n->kernel = *p;
    n->first = *(unsigned long long *)p->params[0];
    n->second = *(unsigned *)p->params[1];
    return p->function != (handle)0x77 || p->extra || p->kernel || p->context;
}
int cuGraphAddMemcpyNode(handle *out, handle g, const handle *after, size_t count, const box *p, handle context) { ADD(MEMCPY); n->copy = *p; return !context; }
int cuGraphAddMemsetNode(handle *out, handle g, const handle *after, size_t count, const memset_node *p, handle context) { ADD(MEMSET); n->fill = *p; return !context; }
int cuGraphAddHostNode(handle *out, handle g, const handle *after, size_t count, const host_node *p) { ADD(HOST); n->host = *p; return 0; }
int cuGraphAddEmptyNode(handle *out, handle g, const handle *after, size_t count) { ADD(EMPTY); return 0; }
int cuGraphAddEventRecordNode(handle *out, handle g, const handle *after, size_t count, handle event) { ADD(RECORD); n->event = event; return 0; }
int cuGraphAddEventWaitNode(handle *out, handle g, const handle *after, size_t count, handle event) { ADD(WAIT); n->event = event; return 0; }
int cuGraphKernelNodeSetAttribute(handle which, unsigned number, const int *value) { ((node *)which)->cooperative = value[0]; return number != 2; }
int cuGraphConditionalHandleCreate(uint64_t *out, handle g, handle context, unsigned value, unsigned flags) { *out = (uint64_t)g + 1; if (flags == 1) fake_condition = value; return !context || flags > 1; }
int cuGraphAddNode_v2(handle *out, handle g, const handle *after, const void *edges, size_t count, conditional_node *p)
{
    if (p->node_kind != CONDITIONAL || p->handle != (uint64_t)g + 1 || !p->context || edges || p->end)
        return 1;
    ADD(CONDITIONAL);
    p->bodies = calloc(p->size, sizeof(handle));
    for (unsigned i = 0; i < p->size; i++)
        p->bodies[i] = calloc(1, sizeof(graph));
    n->conditional = *p;
    return 0;
}

static graph *copy_of(const graph *from)
{
    graph *copy = calloc(1, sizeof *copy);
    node **end = &copy->nodes;
    for (const node *n = from->nodes; n; n = n->next, end = &(*end)->next) {
        *end = malloc(sizeof(node));
        **end = *n;
        (*end)->next = 0;
        if (n->kind != CONDITIONAL)
            continue;
        (*end)->conditional.bodies = calloc(n->conditional.size, sizeof(handle));
        for (unsigned i = 0; i < n->conditional.size; i++)
            (*end)->conditional.bodies[i] = copy_of(n->conditional.bodies[i]);
    }
    return copy;
}
static int run(const graph *g, handle stream)
{
    for (const node *n = g->nodes; n; n = n->next) {
        void *params[] = { (void *)&n->first, (void *)&n->second };
        int failed = 0;
        switch (n->kind) {
        case KERNEL: failed = note(n->cooperative ? "cooperative node" : "node", n->kernel.grid[0], n->kernel.block[2], n->kernel.shared, params); break;
        case MEMCPY: failed = cuMemcpy3DAsync_v2(&n->copy, stream); break;
        case MEMSET:
            for (size_t y = 0; y < n->fill.height; y++)
                for (size_t x = 0; x < n->fill.width; x++)
                    memcpy((char *)n->fill.to + y * n->fill.pitch + x * n->fill.element, &n->fill.value, n->fill.element);
            break;
        case HOST: n->host.run(n->host.data); break;
        case RECORD: cuEventRecord(n->event, stream); break;
        case CONDITIONAL:
            if (n->conditional.kind == 1)
                for (unsigned left = fake_condition; left; left--)
                    failed |= run(n->conditional.bodies[0], stream);
            else if (n->conditional.kind == 0 && (fake_condition || n->conditional.size > 1))
                failed = run(n->conditional.bodies[!fake_condition], stream);
            else if (n->conditional.kind == 2 && fake_condition < n->conditional.size)
                failed = run(n->conditional.bodies[fake_condition], stream);
        }
        if (failed)
            return failed;
    }
    return 0;
}
int cuGraphInstantiateWithFlags(handle *out, handle g, unsigned long long flags) { *out = copy_of(g); fake_flags = (int)flags; fake_execs++; return 0; }
static void run_later(handle stream, int status, void *exec) { (void)status; run(exec, stream); }
/* With `fake_one_thread` the graph must stay as it is until the launch is done. */
int cuGraphLaunch(handle exec, handle stream)
{
    fake_graph_launches++;
    return fake_one_thread ? cuStreamAddCallback(stream, run_later, exec, 0) : run(exec, stream);
}
int fake_rows_refused;
/* The nodes of a launchable graph are those of its graph, in the same order. */
int cuGraphExecKernelNodeSetParams_v2(handle exec, handle which, const kernel_node *p)
{
    node *n = ((graph *)exec)->nodes;
    for (int place = ((node *)which)->place; n && place; place--)
        n = n->next;
    if (!n || n->kind != KERNEL || fake_rows_refused)
        return 1;
    n->kernel = *p;
    n->first = *(unsigned long long *)p->params[0];
    n->second = *(unsigned *)p->params[1];
    return p->function != (handle)0x77 || p->extra;
}
int cuGraphUpload(handle exec, handle stream) { (void)exec; (void)stream; fake_uploads++; return 0; }
int cuGraphExecDestroy(handle exec) { free_nodes(exec); free(exec); fake_execs--; return 0; }
int cuGraphExecUpdate_v2(handle exec, handle g, update_result *result)
{
    graph *old = exec, *new = g;
    node *a = old->nodes, *b = new->nodes;
    for (; a && b; a = a->next, b = b->next)
        if (a->kind != b->kind || a->count != b->count || memcmp(a->after, b->after, sizeof a->after))
            break;
    *result = (update_result){ a || b ? 2 : fake_update_fails ? 4 : 0, b, 0 };
    if (result->result)
        return 910;
    fake_updates++;
    new = copy_of(new);
    free_nodes(old);
    *old = *new;
    free(new);
    return 0;
}
