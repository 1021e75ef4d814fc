#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "chain.h"

namespace {
struct Job {
  const float* x;
  float* y;
  int64_t n;
  float scale;
};

class Pool {
 public:
  Pool() : other_([this] { serve(); }) { other_.detach(); }

  void run(const Job& job) {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      job_ = job, pending_ = true;
    }
    changed_.notify_all();
    part(job, 0, job.n / 2);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !pending_; });
  }

 private:
  static void part(const Job& job, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float r = job.x[i] * job.scale;
      job.y[i] = (r > 0 ? r : 0) * 0.5f + job.x[i] * job.x[i];
    }
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return pending_; });
      const Job job = job_;
      lock.unlock();
      part(job, job.n / 2, job.n);
      lock.lock();
      pending_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Job job_{};
  bool pending_ = false;
  std::thread other_;
};
}  // namespace

extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
  static Pool* pool = new Pool;  // never destroyed: its thread may outlive static destructors
  pool->run({x, y, n, scale});
}
