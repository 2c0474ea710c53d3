// A pool of threads that share a list of items.
//
// Items are handed out one by one, so a thread that the system takes off its core delays only its own item. A waiting
// thread spins for a while, because the next call usually comes soon, and then sleeps, so that other threads can use its
// core, above all the thread that it waits for.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

class Pool {
public:
    using Work = void (*)(void* context, int64_t item, int thread);

    // Throws std::system_error if the system gives no more threads.
    explicit Pool(int threads) : buffers(threads) {
        try {
            for (int i = 1; i < threads; i++) workers.emplace_back([this, i] { serve(i); });
        } catch (...) {
            stop();
            throw;
        }
    }

    ~Pool() { stop(); }

    int size() const { return static_cast<int>(buffers.size()); }

    // Process items 0 to count - 1 on all threads, the calling one included. One call at a time.
    void run(int64_t count, void* context, Work work) {
        if (workers.empty() || count <= 1) {
            for (int64_t item = 0; item < count; item++) work(context, item, 0);
            return;
        }
        job = {count, context, work};
        next.store(0, std::memory_order_relaxed);
        state.store((round(state.load()) + 1) << ROUND | OPEN);
        if (sleeping.load()) {
            { const std::lock_guard lock(mutex); }
            posted.notify_all();
        }
        take_part(0);
        close();
    }

    // Memory of one thread, kept between calls.
    float* buffer(int thread, int64_t floats) {
        std::vector<float>& own = buffers[thread].floats;
        if (static_cast<int64_t>(own.size()) < floats + 16) own.resize(floats + 16);
        const auto at = reinterpret_cast<uintptr_t>(own.data());
        return reinterpret_cast<float*>((at + 63) / 64 * 64);
    }

    std::mutex one_call;    // held by the thread that uses the pool

private:
    void stop() {
        {
            const std::lock_guard lock(mutex);
            stopping = true;
        }
        posted.notify_all();
        for (std::thread& worker : workers) worker.join();
    }

    // The state of the current round: its number, whether it may still be entered, and how many workers are inside.
    static constexpr int ROUND = 32;
    static constexpr uint64_t OPEN = 1u << 31, INSIDE = OPEN - 1;
    static uint64_t round(uint64_t s) { return s >> ROUND; }

    struct Job {
        int64_t count;
        void* context;
        Work work;
    };
    struct alignas(64) Buffer {
        std::vector<float> floats;
    };

    void take_part(int thread) {
        for (int64_t item; (item = next.fetch_add(1)) < job.count;) job.work(job.context, item, thread);
    }

    // Let no more workers enter, and wait until those inside have left.
    void close() {
        state.fetch_and(~OPEN);
        const auto done = [this] { return (state.load() & INSIDE) == 0; };
        if (spin(done)) return;
        std::unique_lock lock(mutex);
        finished.wait(lock, done);
    }

    void serve(int thread) {
        uint64_t seen = 0;
        for (;;) {
            const auto called = [&] { return round(state.load()) != seen || stopping.load(); };
            if (!spin(called)) {
                std::unique_lock lock(mutex);
                sleeping.fetch_add(1);
                posted.wait(lock, called);
                sleeping.fetch_sub(1);
            }
            if (stopping.load()) return;
            uint64_t s = state.load();
            seen = round(s);
            while (s & OPEN && round(s) == seen && !state.compare_exchange_weak(s, s + 1)) {
            }
            if (!(s & OPEN) || round(s) != seen) continue;
            take_part(thread);
            if (const uint64_t left = state.fetch_sub(1) - 1; (left & (OPEN | INSIDE)) == 0) {
                { const std::lock_guard lock(mutex); }
                finished.notify_one();
            }
        }
    }

    template <class Condition>
    static bool spin(Condition holds) {
        using Clock = std::chrono::steady_clock;
        const auto end = Clock::now() + std::chrono::microseconds(SPIN_US);
        do {
            for (int i = 0; i < 32; i++) {
                if (holds()) return true;
#if defined(__x86_64__)
                _mm_pause();
#endif
            }
        } while (Clock::now() < end);
        return false;
    }

    // Longer than Python takes between two operations of a step. Waking a thread takes about as long again.
    static constexpr int SPIN_US = 100;

    Job job{};
    alignas(64) std::atomic<int64_t> next{0};
    alignas(64) std::atomic<uint64_t> state{0};
    alignas(64) std::atomic<int> sleeping{0};
    std::atomic<bool> stopping{false};
    std::mutex mutex;
    std::condition_variable posted, finished;
    std::vector<Buffer> buffers;
    std::vector<std::thread> workers;
};
