// Double-precision functions and roundings.
extern "C" __global__ void math_f64(const double *x, const double *y, double *out) {
    int i = threadIdx.x;
    double a = x[i], b = y[i];
    double *o = out + 32 * i;
    o[0] = sin(a); o[1] = exp(a); o[2] = log(a); o[3] = pow(a, b); o[4] = sqrt(a); o[5] = a / b; o[6] = fma(a, b, a);
    o[7] = __dadd_rz(a, b); o[8] = __dmul_ru(a, b); o[9] = __drcp_rd(a); o[10] = __dsqrt_rn(a); o[11] = rsqrt(a); o[12] = floor(a);
    o[13] = fmin(a, b); o[14] = rint(a); o[15] = (double)(long long)a; o[16] = (double)(unsigned)b; o[17] = atan(a); o[18] = tgamma(a);
    o[19] = __ddiv_rn(a, b); o[20] = __longlong_as_double(__double_as_longlong(a) ^ 1); o[21] = __hiloint2double(__double2hiint(a), __double2loint(b));
    o[22] = (double)(float)a; o[23] = __double2int_rd(a); o[24] = __ull2double_ru(__double2ull_rz(b)); o[25] = cospi(a);
}
extern "C" __global__ void dot_f64(const double2 *a, const double2 *b, double *out, int n) {
    double s = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) s += a[i].x * b[i].x + a[i].y * b[i].y;
    atomicAdd(out, s);
}
