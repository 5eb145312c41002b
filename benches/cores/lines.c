// A plugin of QEMU's user mode (API version 1) that counts how often cache lines move between threads.
//
// Each thread is taken for a core with a cache without limits. A write to a line that another core has, and a read of a
// line that was written and this core has not, are moves. Counting is on while the file PREFIX.on exists. When PREFIX.dump
// appears, PREFIX.tsv gets a row for each line that moved more than three times (address, threads that wrote it, writes,
// moves by writes, moves by reads, and the instructions that moved it most with their counts), and PREFIX.dump goes.

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

// As in qemu-plugin.h, which distributions do not install.
typedef uint64_t plugin_id;
struct tb;
struct insn;
typedef void (*tb_callback)(plugin_id, struct tb *);
typedef void (*memory_callback)(unsigned cpu, uint32_t info, uint64_t address, void *data);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, tb_callback);
size_t qemu_plugin_tb_n_insns(const struct tb *);
struct insn *qemu_plugin_tb_get_insn(const struct tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct insn *);
void qemu_plugin_register_vcpu_mem_cb(struct insn *, memory_callback, int flags, int accesses, void *data);
bool qemu_plugin_mem_is_store(uint32_t info);
enum { NO_REGISTERS = 0, READS_AND_WRITES = 3 };

EXPORT int qemu_plugin_version = 1;

enum { SHARDS = 4096, INSTRUCTIONS = 6 };

struct line {
    uint64_t number;
    // The cores that have it, and those that have written it, as bits.
    uint64_t holders, writers;
    uint32_t writes, moves_by_writes, moves_by_reads;
    uint64_t instruction[INSTRUCTIONS];
    uint32_t moves_of[INSTRUCTIONS];
    struct line *next;
};

static struct {
    pthread_mutex_t lock;
    struct line *first;
} shards[SHARDS];
static volatile bool counting;
static const char *prefix = "/tmp/lines";

// Keeps the instructions that move a line most, about.
static void moved_by(struct line *line, uint64_t instruction) {
    int least = 0;
    for (int i = 0; i < INSTRUCTIONS; i++) {
        if (line->instruction[i] == instruction) {
            line->moves_of[i]++;
            return;
        }
        if (line->moves_of[i] < line->moves_of[least]) least = i;
    }
    line->instruction[least] = instruction;
    line->moves_of[least] = 1;
}

static struct line *line_of(unsigned shard, uint64_t number) {
    for (struct line *line = shards[shard].first; line; line = line->next)
        if (line->number == number) return line;
    struct line *line = calloc(1, sizeof *line);
    line->number = number;
    line->next = shards[shard].first;
    return shards[shard].first = line;
}

static void accessed(unsigned cpu, uint32_t info, uint64_t address, void *instruction) {
    if (!counting) return;
    uint64_t number = address >> 6, core = 1ull << (cpu & 63);
    unsigned shard = (number * 0x9E3779B97F4A7C15ull) >> 52;
    pthread_mutex_lock(&shards[shard].lock);
    struct line *line = line_of(shard, number);
    if (qemu_plugin_mem_is_store(info)) {
        if (line->holders & ~core) {
            line->moves_by_writes++;
            moved_by(line, (uint64_t)instruction);
        }
        line->holders = core;
        line->writers |= core;
        line->writes++;
    } else if (!(line->holders & core)) {
        if (line->holders && line->writers) {
            line->moves_by_reads++;
            moved_by(line, (uint64_t)instruction);
        }
        line->holders |= core;
    }
    pthread_mutex_unlock(&shards[shard].lock);
}

static void translated(plugin_id id, struct tb *tb) {
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
        struct insn *insn = qemu_plugin_tb_get_insn(tb, i);
        void *address = (void *)qemu_plugin_insn_vaddr(insn);
        qemu_plugin_register_vcpu_mem_cb(insn, accessed, NO_REGISTERS, READS_AND_WRITES, address);
    }
}

static void write_lines(const char *path) {
    FILE *out = fopen(path, "w");
    if (!out) return;
    for (int shard = 0; shard < SHARDS; shard++) {
        pthread_mutex_lock(&shards[shard].lock);
        for (struct line *line = shards[shard].first; line; line = line->next) {
            if (line->moves_by_writes + line->moves_by_reads <= 3) continue;
            fprintf(out, "%llx\t%d\t%u\t%u\t%u", (unsigned long long)line->number << 6,
                    __builtin_popcountll(line->writers), line->writes, line->moves_by_writes, line->moves_by_reads);
            for (int i = 0; i < INSTRUCTIONS; i++)
                if (line->moves_of[i])
                    fprintf(out, "\t%llx:%u", (unsigned long long)line->instruction[i], line->moves_of[i]);
            fputc('\n', out);
        }
        pthread_mutex_unlock(&shards[shard].lock);
    }
    fclose(out);
}

static void *watch_files(void *unused) {
    char on[512], dump[512], rows[512];
    snprintf(on, sizeof on, "%s.on", prefix);
    snprintf(dump, sizeof dump, "%s.dump", prefix);
    snprintf(rows, sizeof rows, "%s.tsv", prefix);
    for (;; usleep(20000)) {
        counting = access(on, F_OK) == 0;
        if (access(dump, F_OK)) continue;
        write_lines(rows);
        remove(dump);
    }
    return unused;
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int count, char **arguments) {
    (void)info;
    if (count > 0 && !strncmp(arguments[0], "at=", 3)) prefix = strdup(arguments[0] + 3);
    for (int shard = 0; shard < SHARDS; shard++) pthread_mutex_init(&shards[shard].lock, NULL);
    pthread_t watcher;
    pthread_create(&watcher, NULL, watch_files, NULL);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
