/* Makes an Intel processor look as if it had AVX2 and nothing above it: no AVX-512, VNNI or AMX.
 *
 *     cc -O2 -shared -fPIC -o build/avx2.so tools/avx2.c
 *     LD_PRELOAD=$PWD/build/avx2.so make course          a plain laptop's course, on a server
 *
 * Libraries choose their kernels by the instruction `cpuid`. Linux can make it fault in a process (arch_prctl,
 * ARCH_SET_CPUID, where /proc/cpuinfo says cpuid_fault); the handler here answers in its place and leaves bits out.
 * OpenVINO, oneDNN, MLAS, PyTorch and NumPy then choose what they choose on a laptop; /proc/cpuinfo stays as it is.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define SET_CPUID 0x1012
#define BIT(number) (1u << (number))

static int (*real_sigaction)(int, const struct sigaction *, struct sigaction *);
static struct sigaction theirs; /* what the program wants done at a real SIGSEGV */

static void allow_cpuid(unsigned long allowed) { syscall(SYS_arch_prctl, SET_CPUID, allowed); }

static void answer(greg_t *registers) {
    uint32_t leaf = registers[REG_RAX], part = registers[REG_RCX];
    uint32_t a = leaf, b, c = part, d;
    allow_cpuid(1);
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    allow_cpuid(0);
    if (leaf == 7 && part == 0) {
        b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31)); /* AVX-512 */
        c &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));                                 /* its VBMI, VNNI … */
        d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25));              /* …, FP16, AMX */
    } else if (leaf == 7 && part == 1) {
        a &= ~(BIT(4) | BIT(5) | BIT(21) | BIT(23));          /* AVX-VNNI, BF16, AMX-FP16, AVX-IFMA */
        d &= ~(BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19)); /* AVX-VNNI-INT8 and later ones, AVX10 */
    } else if (leaf == 0xd && part == 0) {
        a &= BIT(0) | BIT(1) | BIT(2); /* x87, SSE, AVX: no wider registers to save */
    } else if (leaf == 0x1d || leaf == 0x1e) {
        a = b = c = d = 0; /* tiles of AMX */
    }
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

static void handle(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *instruction = (const uint8_t *)registers[REG_RIP];
    if (info->si_code == SI_KERNEL && instruction[0] == 0x0f && instruction[1] == 0xa2)
        answer(registers);
    else if (theirs.sa_flags & SA_SIGINFO && theirs.sa_sigaction)
        theirs.sa_sigaction(number, info, context);
    else if (theirs.sa_handler != SIG_DFL && theirs.sa_handler != SIG_IGN)
        theirs.sa_handler(number);
    else
        real_sigaction(SIGSEGV, &(struct sigaction){.sa_handler = SIG_DFL}, NULL); /* it faults again, and ends */
}

int sigaction(int number, const struct sigaction *given, struct sigaction *before) {
    if (!real_sigaction) real_sigaction = dlsym(RTLD_NEXT, "sigaction");
    if (number != SIGSEGV) return real_sigaction(number, given, before);
    struct sigaction last = theirs;
    if (given) theirs = *given;
    if (before) *before = last;
    return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
    struct sigaction given = {.sa_handler = handler, .sa_flags = SA_RESTART}, before = {0};
    return sigaction(number, &given, &before) ? SIG_ERR : before.sa_handler;
}

__attribute__((constructor)) static void begin(void) {
    if (!real_sigaction) real_sigaction = dlsym(RTLD_NEXT, "sigaction");
    struct sigaction ours = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    real_sigaction(SIGSEGV, &ours, NULL);
    allow_cpuid(0);
}
