// Products of the 263M shape by ggml, q4_0 and q8_0 repacked. Reads "kind rows" a line, answers CPU and wall seconds.
#include <ggml.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml-alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
static const int shapes[][3] = {{768,3376,28},{1536,768,28},{768,1280,4},{768,768,4},{768,2048,32},{2048,768,32},{768,32768,1}};
#define N 7
static struct ggml_tensor *w[2][N][32];
static double cpu(void){
  struct rusage u;
  getrusage(RUSAGE_SELF,&u);
  return u.ru_utime.tv_sec+u.ru_utime.tv_usec*1e-6+u.ru_stime.tv_sec+u.ru_stime.tv_usec*1e-6;
}
static double wall(void){
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC,&t);
  return t.tv_sec+t.tv_nsec*1e-9;
}
int main(int argc,char**argv){
  int threads=atoi(argv[1]);
  ggml_backend_t be=ggml_backend_cpu_init();
  ggml_backend_cpu_set_n_threads(be,threads);
  ggml_backend_dev_t dev=ggml_backend_get_device(be);
  ggml_backend_reg_t reg=ggml_backend_dev_backend_reg(dev);
  ggml_backend_dev_get_extra_bufts_t get=(ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(reg,"ggml_backend_dev_get_extra_bufts");
  ggml_backend_buffer_type_t buft=ggml_backend_cpu_buffer_type();
  if(get){
    ggml_backend_buffer_type_t*e=get(dev);
    for(;e&&*e;e++){
      fprintf(stderr,"%s\n",ggml_backend_buft_name(*e));
      if(strstr(ggml_backend_buft_name(*e),"REPACK"))buft=*e;
    }
  }
  fprintf(stderr,"weights in %s\n",ggml_backend_buft_name(buft));
  for(int k=0;k<2;k++){
    enum ggml_type type=k?GGML_TYPE_Q8_0:GGML_TYPE_Q4_0;
    struct ggml_init_params p={ggml_tensor_overhead()*256,NULL,true};
    struct ggml_context*c=ggml_init(p);
    for(int i=0;i<N;i++)for(int j=0;j<shapes[i][2];j++)w[k][i][j]=ggml_new_tensor_2d(c,type,shapes[i][0],shapes[i][1]);
    if(!ggml_backend_alloc_ctx_tensors_from_buft(c,k?ggml_backend_cpu_buffer_type():buft)){
      fprintf(stderr,"no\n");
      return 1;
    }
    for(int i=0;i<N;i++)for(int j=0;j<shapes[i][2];j++){
      size_t n=(size_t)shapes[i][0]*shapes[i][1];
      float*f=malloc(n*4);
      for(size_t x=0;x<n;x++)f[x]=(float)((rand()&1023)-512)/9000;
      void*q=malloc(ggml_nbytes(w[k][i][j]));
      ggml_quantize_chunk(type,f,q,0,shapes[i][1],shapes[i][0],NULL);
      ggml_backend_tensor_set(w[k][i][j],q,0,ggml_nbytes(w[k][i][j]));
      free(f);
      free(q);
    }
  }
  printf("ready\n");
  fflush(stdout);
  char kind[16];
  int rows;
  while(scanf("%15s %d",kind,&rows)==2){
    int k=!strcmp(kind,"q8_0");
    struct ggml_init_params p={ggml_tensor_overhead()*600+ggml_graph_overhead(),NULL,true};
    struct ggml_context*c=ggml_init(p);
    struct ggml_cgraph*g=ggml_new_graph(c);
    struct ggml_tensor*in[3];
    int dims[3]={768,1536,2048};
    for(int d=0;d<3;d++){
      in[d]=ggml_new_tensor_2d(c,GGML_TYPE_F32,dims[d],rows);
      ggml_set_input(in[d]);
    }
    struct ggml_tensor*last=ggml_new_tensor_2d(c,GGML_TYPE_F32,768,rows>32?1:rows);
    ggml_set_input(last);
    for(int i=0;i<N;i++)for(int j=0;j<shapes[i][2];j++){
      struct ggml_tensor*x=i==6?last:in[shapes[i][0]==768?0:shapes[i][0]==1536?1:2];
      ggml_build_forward_expand(g,ggml_mul_mat(c,w[k][i][j],x));
    }
    ggml_gallocr_t a=ggml_gallocr_new(ggml_backend_get_default_buffer_type(be));
    ggml_gallocr_alloc_graph(a,g);
    for(int d=0;d<4;d++){
      struct ggml_tensor*t=d<3?in[d]:last;
      size_t n=ggml_nelements(t);
      float*f=malloc(n*4);
      for(size_t x=0;x<n;x++)f[x]=(float)((rand()&1023)-512)/300;
      ggml_backend_tensor_set(t,f,0,n*4);
      free(f);
    }
    ggml_backend_graph_compute(be,g);
    double c0=cpu(),w0=wall();
    ggml_backend_graph_compute(be,g);
    double w1=wall(),c1=cpu();
    printf("%.6f %.6f\n",c1-c0,w1-w0);
    fflush(stdout);
    ggml_gallocr_free(a);
    ggml_free(c);
  }
}
